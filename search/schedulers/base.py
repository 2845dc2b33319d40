"""The port between the planner and a scheduler: one fold, four questions, and their records.

Each scheduler is a file beside this one, named in `__init__.py`. `ahead.py` has two optional parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from regrow.search.lifecycle import TrialState
from regrow.search.space.domains import Json
from regrow.search.space.setting import Setting

Action: TypeAlias = Literal["continue", "stop", "pause", "restart"]
"""What a decision does to a trial.

- pause: it saves a checkpoint and frees its slot until the scheduler promotes it.
- restart: it ends and continues at once with a change (another configuration, another trial's
  weights, more resources).
"""
Final: TypeAlias = Literal["done", "stopped", "failed"]
Layout: TypeAlias = Literal["none", "rungs", "brackets", "population"]
"""How decisions are shown. "none": those that stopped or paused a trial, by step."""
FINAL: dict[TrialState, Final] = {
    TrialState.DONE: "done",
    TrialState.STOPPED: "stopped",
    TrialState.FAILED: "failed",
}
"""How a trial in a final state ended, as reported to schedulers and samplers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision on one trial.

    Attributes:
        action: see Action.
        until: with "continue", the step of the next decision, None for none before the trial's end.
        why: the reason, for people.
        source: from whose newest checkpoint a paused or restarted trial continues, None: its own.
        config: the flat configuration with which it then continues, None for the current one.
        judged_from: see `Decided` in events.py; None without a guard (`guard.py`).

    """

    action: Action = "continue"
    until: int | None = None
    why: str = ""
    source: int | None = None
    config: Mapping[str, Json] | None = None
    judged_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A trial as it was proposed: `config` is flat, `state` is data of its sampler."""

    trial: int
    config: Mapping[str, Json]
    state: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A session began, or the cluster has become larger or smaller.

    Attributes:
        slots: attempts of width 1, or workers of groups, that may run at a time; 0 while there is
            room for none.
        widest: slots that fit on one node, or that one group may have.

    """

    slots: int
    widest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An attempt was started; for a paused trial its promotion. `width`: its slots."""

    trial: int
    width: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The planner took a decision and wrote it to the log.

    Attributes:
        trial: the trial.
        values: the objective by step, as passed to `decide`.
        verdict: what was written. It may differ from the one that `decide` returned.

    """

    trial: int
    values: Sequence[float]
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A paused trial was retired."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A trial reached a final state: "failed" also if it never reported, "stopped" if retired. With
    its objective by step.
    """

    trial: int
    how: Final
    values: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Revival:
    """A failed trial is retried at the user's request, as if it had not ended.

    Attributes:
        trial: the trial.
        held: it was to pause when it failed, and is paused again. If not, its next attempt starts
            without a promotion.

    """

    trial: int
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """The user dropped a trial that has ended, so that it no longer counts; or keeps it again."""

    trial: int
    excluded: bool


News: TypeAlias = Opening | Candidate | Start | Decision | Drop | End | Revival | Exclusion
"""What `apply` receives. A Candidate means that the trial was proposed."""


@runtime_checkable
class SchedulerPort(Protocol):
    """Decides at certain steps whether a trial continues, and which paused trial is promoted.

    Its state is a fold over what `apply` receives, so that it is rebuilt by replaying the log. The
    other methods are questions: they change nothing and depend only on that state (no clock, no
    randomness but from `setting.seed`). `values` are the objective by step: `values[s - 1]` at step
    s, the last one at the decision's step; never NaN. They belong to the planner and must not be
    kept or changed.

    With `step_metric`, reports leave steps out, and a step has the value of the first report at or
    after it: one report may be decided on at several steps, with that value at each. There may be
    2^53 steps, so iterate with `step_metric.stretches`, not over `values`. A step that is redone
    after a loss is not decided on again, though its value may differ.
    """

    def apply(self, news: News) -> None:
        """Fold in an event."""
        ...

    def first(self, trial: int, after: int) -> int | None:
        """Return the first step after `after` with a decision, None for none before the end.

        `after`: the step of the trial's last decision, 0 before the first. Asked for each attempt,
        so the answer after a decision is the `until` of that decision. Also asked for a later step
        if one report passed a thousand decisions.
        """
        ...

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Decide on a trial at step len(values), where a decision is due."""
        ...

    def promote(self, *, complete: bool) -> int | None:
        """Return the paused trial that gets the next free slot, None for none: then a new one is
        proposed.

        `complete`: no new trial will be proposed, so a scheduler must not wait for one.
        """
        ...

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        """Return a paused trial that will never be promoted, and why; called until it returns None.

        The planner itself retires trials that are still paused when nothing runs, nothing is
        promoted and no new trial comes.
        """
        ...


@runtime_checkable
class Widening(Protocol):
    """Optional part of a scheduler that sets how many slots an attempt gets."""

    def width(self, trial: int) -> int:
        """Return the slots of the trial's next attempt. Without this method it is 1."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """Optional part of a scheduler that knows beforehand how much work there is."""

    def most_steps(self, trials: int) -> int | None:
        """Return the most steps that this number of trials may do, None if nothing limits them."""
        ...


class Scheduler:
    """Base class of schedulers. By default every trial runs to its end; override what differs.

    `apply` calls one method for each kind of event; a scheduler overrides those it needs. Its
    options are the keyword-only parameters of its class; a value must have the type of the default.
    `search/options.py` has checks of ranges. A SpecError that names an option is reported as one of
    the specification. Class attributes state what a scheduler needs.
    """

    needs_max_steps = True
    """Whether it requires `max_steps`."""
    several = False
    """Whether it may be used with several metrics; `values` are then those of the first."""
    decides = True
    """Whether it ever takes a decision."""
    exact = False
    """Whether each trial does all the steps that it may do, unless it ends before."""
    takes_budgets = False
    """Whether it needs a sampler whose proposals come with a budget."""
    changes_configurations = False
    """Whether configurations change: then several trials may begin with the same one."""
    layout: Layout = "none"
    """How its decisions are shown."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def apply(self, news: News) -> None:
        """Call the method for this kind of event."""
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
            case Exclusion():
                self.excluded(news.trial, excluded=news.excluded)
            case Opening():
                self.opened(news.slots, news.widest)

    # ---- events: see the records above

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

    def excluded(self, trial: int, *, excluded: bool) -> None:
        """See Exclusion."""

    def opened(self, slots: int, widest: int) -> None:
        """See Opening."""

    def regular(self, after: int, first: int, interval: int) -> int | None:
        """Return the next of the steps `first`, first + interval, ..., below max_steps."""
        step = first + max(0, after - first + interval) // interval * interval
        return step if self.setting.max_steps is None or step < self.setting.max_steps else None

    # ---- questions: see SchedulerPort

    def first(self, trial: int, after: int) -> int | None:
        """Return None: no decision is due."""
        return None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Let the trial continue to its end."""
        return Verdict()

    def promote(self, *, complete: bool) -> int | None:
        """Return None: no trial is paused."""
        return None

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        """Return None: no trial is paused."""
        return None
