"""Private attributes of Optuna that we read: the options with which its objects were made.

Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

if TYPE_CHECKING:  # Optuna's class has fields where ours has properties
    from optuna.trial import BaseTrial as Trial
else:
    from optuna.trial import Trial

NOT_THERE = inspect.Parameter.empty
"""Marks an option that an object does not keep."""


def options(made: BasePruner | BaseSampler) -> dict[str, tuple[Any, Any]]:
    """Return an object's arguments, each with default and value (NOT_THERE if it keeps none)."""
    parameters = inspect.signature(type(made)).parameters.values()
    return {p.name: (p.default, getattr(made, f"_{p.name}", NOT_THERE)) for p in parameters}


def seed(sampler: BaseSampler) -> int | None:
    """Return the seed that a new sampler was given, None for none."""
    lazy = getattr(sampler, "_rng", None)
    if lazy is None or lazy._rng is None:  # noqa: SLF001 - the purpose of this module
        return None
    return int(lazy.rng.get_state()[1][0])  # the first word of a Mersenne twister is its seed


def numbered(trial: FrozenTrial, number: int) -> FrozenTrial:
    """Return a trial that is not in a storage with its number."""
    trial.number = trial._trial_id = number  # noqa: SLF001 - the purpose of this module
    return trial


def validated(trial: FrozenTrial) -> None:
    """Raise ValueError for a trial whose fields contradict each other, in Optuna's words."""
    trial._validate()  # noqa: SLF001 - the purpose of this module


class TheirStudy(Study):
    """Base class of our study; the names that we add do not collide with Optuna's."""


class TheirTrial(Trial):
    """Base class of our trial, which Optuna's code takes for one of its own."""

    @property
    def _trial_id(self) -> int:
        return self.number
