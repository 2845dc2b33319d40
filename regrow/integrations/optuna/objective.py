"""An Optuna objective as a trainable: pickled with the user's function, and run on workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from optuna.exceptions import TrialPruned
from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import TrialState

from regrow.integrations.optuna.own_sampler import OwnSampler
from regrow.integrations.optuna.running import Trial, finite
from regrow.integrations.optuna.searching import Constraints
from regrow.search.planning.suggesting import CAUGHT, EXPECTED
from regrow.search.samplers.external import External
from regrow.tasks.trial.trial import Trial as OurTrial


class Objective:
    """The user's `function`. `metrics`: names of its values. The other arguments: see Trial."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        metrics: Sequence[str],
        catch: tuple[type[Exception], ...],
        constraints: Constraints | None,
        last: int | None,
        study: Callable[[OurTrial], Study],
        pruner: BasePruner | None = None,
        sampler: OwnSampler | None = None,
    ) -> None:
        self._function, self._metrics, self._catch = function, tuple(metrics), catch
        self._constraints, self._last, self._study = constraints, last, study
        self._pruner, self._sampler = pruner, sampler

    def external(self) -> External | None:
        """See HasExternal."""
        return None if self._sampler is None else self._sampler.external()

    @property
    def function(self) -> Callable[[Any], Any]:
        """The user's function."""
        return self._function

    def __call__(self, ours: OurTrial) -> None:
        """Run it as one attempt."""
        several = len(self._metrics) > 1
        trial = Trial(
            ours, several=several, last=self._last, study=self._study, pruner=self._pruner
        )
        try:
            returned = self._function(trial)
        except TrialPruned as pruned:
            self._constrain(trial, TrialState.PRUNED, None)
            ours.give_up(str(pruned))
        except self._catch:
            ours.note({CAUGHT: EXPECTED})
            raise
        try:
            values = checked(returned, len(self._metrics))
        except ValueError:
            ours.note({CAUGHT: EXPECTED})  # such a trial fails in Optuna, and the study continues
            raise
        self._constrain(trial, TrialState.COMPLETE, values)
        ours.conclude(dict(zip(self._metrics, map(finite, values), strict=True)))

    def _constrain(self, trial: Trial, state: TrialState, values: list[float] | None) -> None:
        if self._constraints is None:
            return
        for place, violation in enumerate(self._constraints(trial.frozen(state, values))):
            trial.set_constraint(str(place), violation)


def checked(returned: Any, count: int) -> list[float]:
    """Return as many values as numbers. Raises ValueError in Optuna's words."""
    if returned is None:
        raise ValueError("The value None could not be cast to float.")
    several = list(returned) if isinstance(returned, Sequence) else [returned]
    values, problems = [], []
    for value in several:
        try:
            number = float(value)
        except (TypeError, ValueError):
            problems.append(f"The value {value!r} could not be cast to float")
            continue
        if math.isnan(number):
            problems.append(f"The value {value} is not acceptable")
        values.append(number)
    if problems:
        raise ValueError("; ".join(problems))
    if len(values) != count:
        raise ValueError(
            f"The number of the values {len(values)} did not match the number of the objectives"
            f" {count}"
        )
    return values
