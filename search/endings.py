"""When one trial has done enough: a pure fold over its objective, step by step."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conditions of `stop: {trial: ...}` except for the user's function.

    Attributes:
        sign: makes the objective a cost (1 for min, -1 for max).
        target: in the objective's unit, None for none.
        steps: a trial is done once its best value improved by no more than `tolerance` in this many
            steps; None for never.
        tolerance: in the objective's unit.

    """

    sign: float
    target: float | None = None
    steps: int | None = None
    tolerance: float = 0.0


class Endings:
    """The conditions and a trial's progress towards them."""

    def __init__(self, ending: Ending, values: Iterable[float] = ()) -> None:
        """Take the conditions, and in `values` the objective at the steps done so far."""
        self._ending = ending
        self._best: float | None = None
        self._since = 0
        self.why: str | None = None
        """Why the trial has done enough, None while it has not."""
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        """Add the objective at the next step."""
        ending, cost = self._ending, self._ending.sign * value
        if self._best is None or cost < self._best - ending.tolerance:
            self._best, self._since = cost, 0
        else:
            self._since += 1
        if ending.target is not None and cost <= ending.sign * ending.target:
            self.why = f"it reached its target, {ending.target:g}"
        elif ending.steps is not None and self._since >= ending.steps:
            self.why = f"no better value in {self._since} steps"
