"""Syne Tune's side of `rivals.py`, run by the Python of its own environment.

Its schedulers are called as Syne Tune's own Tuner does: `suggest`,
`on_trial_add`, `on_trial_result` for each step, then `on_trial_remove` for a trial that it stops,
`on_trial_complete` for one that ends.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np
import syne_tune  # type: ignore[import-not-found]  # it is in another environment, here and in the lines below
from syne_tune import config_space
from syne_tune.backend.trial_status import Trial  # type: ignore[import-not-found]
from syne_tune.optimizer import baselines  # type: ignore[import-not-found]
from syne_tune.optimizer.schedulers.median_stopping_rule import MedianStoppingRule  # type: ignore[import-not-found]

from benchmarks.side import serve

STEP = "step"
DOMAINS = {
    "uniform": lambda form: config_space.uniform(*form),
    "loguniform": lambda form: config_space.loguniform(*form),
    "int": lambda form: config_space.randint(*form),
    "logint": lambda form: config_space.lograndint(*form),
    "choice": config_space.choice,
}


class Side:
    """One scheduler at a time, and its trials by number."""

    def __init__(self) -> None:
        self._scheduler: Any = None
        self._trials: list[Trial] = []
        self._max_t = 0

    def version(self) -> str:
        return str(syne_tune.__version__)

    def make(self, name: str, seed: int, forms: list[Any], about: dict[str, Any]) -> bool:
        np.random.seed(seed)  # noqa: NPY002  # some of its schedulers draw from it
        space = {parameter: DOMAINS[kind](form) for parameter, kind, form in forms}
        common = {"do_minimize": about["mode"] == "min", "random_seed": seed}
        rungs = {
            "time_attr": STEP,
            "max_t": about["max_t"],
            "grace_period": 1,
            "reduction_factor": about["eta"],
        }
        if name == "random":
            self._scheduler = baselines.RandomSearch(space, metrics=["score"], **common)
        elif name == "median":
            inner = baselines.RandomSearch(space, metrics=["score"], **common)
            self._scheduler = MedianStoppingRule(inner, STEP, metric="score", **common)
        else:
            kind, _, several = name.partition("-")
            made = {
                "asha": baselines.ASHA,
                "bohb": baselines.BOHB,
                "cqr": baselines.ASHACQR,
                "bore": baselines.ASHABORE,
            }[kind]
            brackets = about["brackets"] if several else 1
            self._scheduler = made(space, metric="score", brackets=brackets, **rungs, **common)
        self._trials = []
        self._max_t = about["max_t"]
        return True

    def ask(self) -> dict[str, Any] | None:
        suggestion = self._scheduler.suggest()
        if suggestion is None:
            return None
        trial = Trial(len(self._trials), suggestion.config, dt.datetime.now(tz=dt.UTC))
        self._trials.append(trial)
        self._scheduler.on_trial_add(trial)
        return dict(suggestion.config)

    def report(self, number: int, step: int, score: float) -> str:
        result = {"score": score, STEP: step}
        decision = str(self._scheduler.on_trial_result(self._trials[number], result)).lower()
        if decision != "continue":
            self._scheduler.on_trial_remove(self._trials[number])
        elif step == self._max_t:
            self._scheduler.on_trial_complete(self._trials[number], result)
        return decision

    def fail(self, number: int) -> bool:
        self._scheduler.on_trial_error(self._trials[number])
        return True


if __name__ == "__main__":
    serve(Side())
