"""The trial that a define-by-run function of OptunaSearch is given: Optuna's names on our trial.
Its values are decisions in the log, as those of any `search: define_by_run`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from regrow.tasks.trial.trial import Trial


class SuggestingTrial:
    """See `optuna.trial.Trial`. `params`: the values so far."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self.number = trial, trial.number
        self.params: dict[str, Any] = {}

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self._suggest(name, FloatDistribution(low, high, log=log, step=step)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return int(self._suggest(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._suggest(name, CategoricalDistribution(tuple(choices)))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high, log=True)

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        if name not in self.params:
            form = json.loads(distribution_to_json(distribution))
            self.params[name] = self._trial.suggest(name, form)
        return self.params[name]


def suggested(define: Callable[[Any], dict[str, Any] | None], trial: Trial) -> dict[str, Any]:
    """Return the values that the function asks for, and the constants that it returns."""
    asking = SuggestingTrial(trial)
    constants = define(asking)
    return {**asking.params, **(constants or {})}
