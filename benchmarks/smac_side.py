"""SMAC's side of `rivals.py`, run by the Python of its own environment: its multi-fidelity facade
(random forest, Hyperband) by `ask` and `tell`, with its defaults.

An evaluation with a larger budget is the same trial, which goes on: SMAC pauses it at each budget.
"""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import version
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import smac  # type: ignore[import-not-found]  # it is in another environment, here and in the lines below
from ConfigSpace import (  # type: ignore[import-not-found]
    CategoricalHyperparameter,
    ConfigurationSpace,
    UniformFloatHyperparameter,
    UniformIntegerHyperparameter,
)
from smac.runhistory.dataclasses import TrialValue  # type: ignore[import-not-found]
from smac.runhistory.enumerations import StatusType  # type: ignore[import-not-found]

from benchmarks.side import serve

DOMAINS = {
    "uniform": lambda name, form: UniformFloatHyperparameter(name, *form),
    "loguniform": lambda name, form: UniformFloatHyperparameter(name, *form, log=True),
    "int": lambda name, form: UniformIntegerHyperparameter(name, *form),
    "logint": lambda name, form: UniformIntegerHyperparameter(name, *form, log=True),
    "choice": CategoricalHyperparameter,
}
EVALUATIONS = 5
"""Evaluations for the price of a full training, about: its initial design is a part of them all."""


class Side:
    """One facade at a time, and its trials by number."""

    def __init__(self) -> None:
        self._facade: Any = None
        self._numbers: dict[Any, int] = {}
        self._asked: dict[int, Any] = {}
        """What each trial is evaluated for."""
        self._sign = 1.0
        self._worst = 0.0
        """The largest cost so far."""

    def version(self) -> str:
        return version("smac")

    def make(self, kind: str, seed: int, forms: list[Any], about: dict[str, Any]) -> bool:
        space = ConfigurationSpace(seed=seed)
        space.add([DOMAINS[kind](name, form) for name, kind, form in forms])
        scenario = smac.Scenario(
            space,
            deterministic=True,
            seed=seed,
            n_trials=int(EVALUATIONS * about["trainings"]),
            min_budget=1,
            max_budget=about["max_t"],
            output_directory=tempfile.mkdtemp(),
        )
        self._facade = smac.MultiFidelityFacade(
            scenario, _unused, logging_level=False, overwrite=True
        )
        self._numbers, self._asked, self._worst = {}, {}, 0.0
        self._sign = 1.0 if about["mode"] == "min" else -1.0
        return True

    def ask(self) -> dict[str, Any] | int:
        info = self._facade.ask()
        known = self._numbers.get(info.config)
        number = len(self._numbers) if known is None else known
        self._numbers[info.config] = number
        self._asked[number] = info
        return dict(info.config) if known is None else known

    def report(self, number: int, step: int, score: float) -> str:
        info = self._asked[number]
        if step < round(info.budget):
            return "continue"
        cost = self._sign * score
        self._worst = max(self._worst, cost)
        self._facade.tell(info, TrialValue(cost=cost), save=False)
        return "pause"

    def fail(self, number: int) -> bool:
        # its own default, infinity, ends its random forest with an error
        value = TrialValue(cost=self._worst, status=StatusType.CRASHED)
        self._facade.tell(self._asked[number], value, save=False)
        return True


def _unused(config: Any, seed: int, budget: float) -> float:
    raise NotImplementedError("trainings are simulated")


if __name__ == "__main__":
    serve(Side())
