"""An Optuna objective as a trainable: pickled with the user's function, and run on workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from optuna.exceptions import TrialPruned
from optuna.trial import TrialState

from regrow.integrations.optuna.running import Trial
from regrow.integrations.optuna.searching import Constraints
from regrow.tasks.trial.trial import Trial as OurTrial

CAUGHT = "optuna:caught"
"""Attribute of a trial whose failure does not end the study."""


class Objective:
    """The user's `function`. `metrics`: names of its values; `last`: see Trial."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        metrics: Sequence[str],
        catch: tuple[type[Exception], ...],
        constraints: Constraints | None,
        last: int | None,
    ) -> None:
        self._function, self._metrics, self._catch = function, tuple(metrics), catch
        self._constraints, self._last = constraints, last

    @property
    def function(self) -> Callable[[Any], Any]:
        """The user's function."""
        return self._function

    def __call__(self, ours: OurTrial) -> None:
        """Run it as one attempt."""
        trial = Trial(ours, several=len(self._metrics) > 1, last=self._last)
        try:
            returned = self._function(trial)
        except TrialPruned as pruned:
            self._constrain(trial, TrialState.PRUNED, None)
            ours.give_up(str(pruned))
        except self._catch:
            ours.note({CAUGHT: True})
            raise
        try:
            values = self._checked(returned)
        except ValueError:
            ours.note({CAUGHT: True})  # such a trial fails in Optuna, and the study continues
            raise
        self._constrain(trial, TrialState.COMPLETE, values)
        ours.conclude(dict(zip(self._metrics, values, strict=True)))

    def _checked(self, returned: Any) -> list[float]:
        """Return the function's values as numbers. Raises ValueError in Optuna's words."""
        listed = isinstance(returned, Sequence) and not isinstance(returned, str)
        several = list(returned) if listed else [returned]
        if len(several) != len(self._metrics):
            raise ValueError(
                f"The number of the values {len(several)} did not match the number of the"
                f" objectives {len(self._metrics)}."
            )
        values = []
        for value in several:
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise ValueError(f"The value {value!r} could not be cast to float.") from None
            if not math.isfinite(number):
                raise ValueError(f"The value {number} is not acceptable.")
            values.append(number)
        return values

    def _constrain(self, trial: Trial, state: TrialState, values: list[float] | None) -> None:
        if self._constraints is None:
            return
        for place, violation in enumerate(self._constraints(trial.frozen(state, values))):
            trial.set_constraint(str(place), violation)
