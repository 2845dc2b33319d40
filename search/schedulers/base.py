"""The port of a scheduler. One file beside this one is one scheduler; it is named in `__init__.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision on one trial. `until`: the step of the next decision, None for none before the trial's end."""

    go_on: bool
    until: int | None = None
    why: str = ""


class Scheduler(Protocol):
    """Decides at certain steps whether a trial goes on.

    Its state is a fold over the decisions taken (`tell`), so that it is rebuilt by replaying the log; `first` and
    `decide` change nothing. Values are the objective's, never NaN.
    """

    def first(self, after: int) -> int | None:
        """The first step after `after` at which a decision is due; None for none before the trial's end."""
        ...

    def decide(self, trial: int, step: int, value: float) -> Verdict:
        """What to do with a trial that reached `step` with `value`, given all that was told before."""
        ...

    def tell(self, trial: int, step: int, value: float) -> None:
        """The decision at `step` was taken on the strength of `value`."""
        ...
