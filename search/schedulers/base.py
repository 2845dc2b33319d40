"""The port of a scheduler. One file beside this one is one scheduler; it is named in `__init__.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from regrow.search.domains import Json
from regrow.search.lifecycle import TrialState
from regrow.search.setting import Setting

Action: TypeAlias = Literal["continue", "stop", "pause", "restart"]
"""What becomes of a trial at a decision. `pause`: it saves a checkpoint and frees its slot until the scheduler promotes it;
`restart`: it ends and goes on at once, in another way (another configuration, another trial's weights, more resources)."""
Final: TypeAlias = Literal["done", "stopped", "failed"]
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


class Scheduler:
    """Decides at certain steps what becomes of a trial, and which paused trial goes on. By default: every trial runs to its end.

    What it knows is a fold over `opened`, `added`, `started`, `tell`, `dropped`, `ended` and `revived`, so that it is rebuilt by
    replaying the log; the other methods (`first`, `decide`, `promote`, `surplus`, `width`) are queries: they change nothing
    and depend on nothing but what was told (no clock, no chance but from `setting.seed`). Made with a Setting; its options
    are the keyword-only parameters of its class. `values` are the objective by step: `values[s - 1]` at step s, the last one
    at the decision's step; never NaN. They belong to the planner and must not be kept or changed.
    """

    needs_max_steps = True
    """Whether it can do nothing without `max_steps`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    # ---- the fold ------------------------------------------------------------------------------------------------

    def opened(self, slots: int, widest: int) -> None:
        """A sitting began. `slots`: attempts of width 1 that may run at a time; `widest`: those that fit on one node."""

    def added(self, candidate: Candidate) -> None:
        """A trial was proposed."""

    def started(self, trial: int) -> None:
        """An attempt of a trial was started; for one that was paused this is its promotion."""

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """A decision was taken, and by the planner's leave `verdict` is what came of it."""

    def dropped(self, trial: int) -> None:
        """A trial that was paused is given up."""

    def ended(self, trial: int, how: Final) -> None:
        """A trial ended for good: "failed" also where it never reported; "stopped" also where it was given up."""

    def revived(self, trial: int, *, held: bool) -> None:
        """A trial that had ended as failed is tried again, by the user's wish: it goes on as if it had not ended. `held`: it was
        to pause when it failed, and is paused again; else its next attempt starts without a promotion.
        """

    # ---- queries -------------------------------------------------------------------------------------------------

    def first(self, trial: int, after: int) -> int | None:
        """The first step after `after` at which a decision on the trial is due; None for none before its end."""
        return None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """What becomes of a trial at step len(values), where a decision is due."""
        return Verdict()

    def promote(self, *, complete: bool) -> int | None:
        """The paused trial that goes on next in a free slot, None for none: then a new one is proposed.

        `complete`: no new trial will ever come, so waiting for one is in vain.
        """
        return None

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        """A paused trial that will never be promoted, and why; asked until it has none. Those that are paused when nothing
        runs, nothing is promoted and nothing new comes are given up by the planner itself.
        """
        return None

    def most_steps(self, trials: int) -> int | None:
        """Steps that so many trials may do at most, for people to see how much is left; None where nothing limits them."""
        return None if self.setting.max_steps is None else trials * self.setting.max_steps

    def width(self, trial: int) -> int:
        """How many slots' worth of resources the trial's next attempt gets."""
        return 1
