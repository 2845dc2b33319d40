"""What of Optuna's own objects is read that its documentation does not promise: the options that they were made with.

Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it.
"""

from __future__ import annotations

import inspect
from typing import Any

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import BaseTrial

NOT_THERE = inspect.Parameter.empty
"""Stands for an option that an object does not keep."""


def options(made: BasePruner | BaseSampler) -> dict[str, tuple[Any, Any]]:
    """The arguments of an object's class, each with its default and what the object has of it, NOT_THERE for nothing."""
    parameters = inspect.signature(type(made)).parameters.values()
    return {p.name: (p.default, getattr(made, f"_{p.name}", NOT_THERE)) for p in parameters}


def seed(sampler: BaseSampler) -> int | None:
    """The seed that a new sampler was given, None for none."""
    lazy = getattr(sampler, "_rng", None)
    if lazy is None or lazy._rng is None:  # noqa: SLF001 - what this module is for
        return None
    return int(lazy.rng.get_state()[1][0])  # the first word of a Mersenne twister is what it was seeded with


class TheirStudy(Study):
    """Optuna's study, to derive from: what a class of ours adds has names of its own."""


class TheirTrial(BaseTrial):
    """The interface of Optuna's trials, to derive from."""
