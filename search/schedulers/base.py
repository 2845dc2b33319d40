"""The port between the planner and a scheduler: one fold, four questions, and the records that pass through them.

One file beside this one is one scheduler; it is named in `__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from regrow.search.lifecycle import TrialState
from regrow.search.space.domains import Json
from regrow.search.space.setting import Setting

Action: TypeAlias = Literal["continue", "stop", "pause", "restart"]
"""What becomes of a trial at a decision. `pause`: it saves a checkpoint and frees its slot until the scheduler promotes it;
`restart`: it ends and goes on at once, in another way (another configuration, another trial's weights, more resources)."""
Final: TypeAlias = Literal["done", "stopped", "failed"]
Layout: TypeAlias = Literal["none", "rungs", "brackets", "population"]
"""As what people see a scheduler's decisions. "none": as those that stopped or paused a trial, by step."""
FINAL: dict[TrialState, Final] = {
    TrialState.DONE: "done", TrialState.STOPPED: "stopped", TrialState.FAILED: "failed"
}
"""How a trial in a final state ended, as schedulers and samplers are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision on one trial.

    `until`: with "continue", the step of the next decision, None for none before the trial's end. `why` is for people.
    With "pause" and "restart": `source` is the trial whose newest checkpoint it goes on from, None for its own; `config`
    is the flat configuration with which it goes on, None for the one that it has.
    """

    action: Action = "continue"
    until: int | None = None
    why: str = ""
    source: int | None = None
    config: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A trial as it was proposed: `config` is flat, `state` what its sampler noted."""

    trial: int
    config: Mapping[str, Json]
    state: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A session began, or the cluster has become larger or smaller.

    `slots`: attempts of width 1, or workers of groups, that may run at a time, 0 while there is room for none; `widest`: those
    that fit on one node, or that one group may have.
    """

    slots: int
    widest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An attempt of a trial was started; for one that was paused this is its promotion. `width`: the slots that it has."""

    trial: int
    width: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision was taken, and by the planner's leave `verdict` is what came of it. `values`: as `decide` was shown them."""

    trial: int
    values: Sequence[float]
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A trial that was paused is given up."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A trial ended for good: "failed" also where it never reported; "stopped" also where it was given up."""

    trial: int
    how: Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Revival:
    """A trial that had ended as failed is tried again, by the user's wish: it goes on as if it had not ended.

    `held`: it was to pause when it failed, and is paused again; else its next attempt starts without a promotion.
    """

    trial: int
    held: bool


News: TypeAlias = Opening | Candidate | Start | Decision | Drop | End | Revival
"""What a scheduler is told; a Candidate: it was proposed."""


@runtime_checkable
class SchedulerPort(Protocol):
    """Decides at certain steps what becomes of a trial, and which paused trial goes on.

    What it knows is a fold over what `apply` is told, so that it is rebuilt by replaying the log. The other methods are
    questions: they change nothing and depend on nothing but what was told (no clock, no chance but from `setting.seed`).
    `values` are the objective by step: `values[s - 1]` at step s, the last one at the decision's step; never NaN. They belong
    to the planner and must not be kept or changed.
    """

    def apply(self, news: News) -> None:
        """Something happened."""
        ...

    def first(self, trial: int, after: int) -> int | None:
        """The first step after `after` at which a decision on the trial is due; None for none before its end."""
        ...

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """What becomes of a trial at step len(values), where a decision is due."""
        ...

    def promote(self, *, complete: bool) -> int | None:
        """The paused trial that goes on next in a free slot, None for none: then a new one is proposed.

        `complete`: no new trial will ever come, so waiting for one is in vain.
        """
        ...

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        """A paused trial that will never be promoted, and why; asked until it has none. Those that are paused when nothing
        runs, nothing is promoted and nothing new comes are given up by the planner itself.
        """
        ...


@runtime_checkable
class Widening(Protocol):
    """Of a scheduler, where it has a say in that: what an attempt gets."""

    def width(self, trial: int) -> int:
        """How many slots' worth of resources the trial's next attempt gets; 1 where a scheduler does not say."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """Of a scheduler that knows beforehand how much will be done, for people to see how much is left."""

    def most_steps(self, trials: int) -> int | None:
        """Steps that so many trials may do at most; None where nothing limits them."""
        ...


class Scheduler:
    """A scheduler to derive from. By default every trial runs to its end: write what yours does otherwise.

    It hands what `apply` is told to a method for each kind of news, of which a scheduler writes those that it cares about. Made
    with a Setting; its options are the keyword-only parameters of its class, and a SpecError at the name of one of them is told
    as one of the specification. What else there is to know of it stands in the attributes of its class.
    """

    needs_max_steps = True
    """Whether it can do nothing without `max_steps`."""
    several = False
    """Whether it may be used where there are several metrics; `values` are those of the first."""
    decides = True
    """Whether it ever decides anything."""
    exact = False
    """Whether each trial does all the steps that it may do, unless it is over before."""
    takes_budgets = False
    """Whether it needs a sampler whose proposals come with a budget."""
    layout: Layout = "none"
    """As what its decisions are shown."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def apply(self, news: News) -> None:
        """Calls the method for this kind of news."""
        match news:
            case Decision():
                self.tell(news.trial, news.values, news.verdict)
            case Start():
                self.started(news.trial)
            case Candidate():
                self.added(news)
            case End():
                self.ended(news.trial, news.how)
            case Drop():
                self.dropped(news.trial)
            case Revival():
                self.revived(news.trial, held=news.held)
            case Opening():
                self.opened(news.slots, news.widest)

    # ---- what it is told: see the records above --------------------------------------------------------------------

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """See Decision."""

    def started(self, trial: int) -> None:
        """See Start."""

    def added(self, candidate: Candidate) -> None:
        """See Candidate."""

    def ended(self, trial: int, how: Final) -> None:
        """See End."""

    def dropped(self, trial: int) -> None:
        """See Drop."""

    def revived(self, trial: int, *, held: bool) -> None:
        """See Revival."""

    def opened(self, slots: int, widest: int) -> None:
        """See Opening."""

    # ---- what it is asked: see SchedulerPort -----------------------------------------------------------------------

    def first(self, trial: int, after: int) -> int | None:
        """At no step."""
        return None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """It goes on to its end."""
        return Verdict()

    def promote(self, *, complete: bool) -> int | None:
        """None is paused."""
        return None

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        """None is paused."""
        return None
