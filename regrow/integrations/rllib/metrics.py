"""Metrics of an RLlib iteration: stable names of ours for results whose names and paths are
RLlib's.

Pure: RLlib is not imported, results are nested maps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from regrow.tasks.trial.metric_values import number_of

Result = Mapping[str, Any]

PLACES = {
    "return": "env_runners/episode_return_mean",
    "return_min": "env_runners/episode_return_min",
    "return_max": "env_runners/episode_return_max",
    "episode_length": "env_runners/episode_len_mean",
    "episodes": "env_runners/num_episodes_lifetime",
    "env_steps": "num_env_steps_sampled_lifetime",
    "iterations": "training_iteration",
    "evaluation_return": "evaluation/env_runners/episode_return_mean",
    "evaluation_length": "evaluation/env_runners/episode_len_mean",
}
"""Path of each metric in RLlib's result, by name."""
EPISODIC = (
    "return",
    "return_min",
    "return_max",
    "episode_length",
    "evaluation_return",
    "evaluation_length",
)
"""Metrics that are missing in an iteration in which no episode ended."""
EVALUATED = {
    name: PLACES[name].replace("env_runners", "evaluation/env_runners", 1) for name in EPISODIC[:4]
}
"""Paths for an algorithm that learns from recorded episodes."""
ONLY_MODULE = "default_policy"
"""The module of an algorithm with a single one; its learning metrics have no prefix."""
_LEARNED = (
    "entropy",
    "td_error_mean",
    "qf_mean",
    "vf_explained_var",
    "curr_kl_coeff",
    "alpha_value",
)
"""Learning metrics that are reported in addition to all losses."""


def measured(
    result: Result, names: Iterable[str] = (), *, offline: bool = False
) -> dict[str, float]:
    """Return the finite numbers of an iteration that a trial reports, by name.

    `asked`: names of the specification's metrics; one with a slash is a path in RLlib's result.
    `offline`: the algorithm plays only to be evaluated.
    """
    places = PLACES | (EVALUATED if offline else {}) | {name: name for name in names if "/" in name}
    found = {name: _number(result, place) for name, place in places.items()}
    found |= dict(_learned(result.get("learners", {})))
    return {name: value for name, value in found.items() if value is not None}


def is_never_reported(name: str, result: Result) -> bool:
    """Return whether a metric that is missing in an iteration will never appear: it is not a metric
    of episodes, and all others are there.

    A number that is not finite counts as present; results of an evaluation may come later.
    """
    learned = {found for found, _ in _learned(result.get("learners", {}))}
    all_there = bool(learned) and _number(result, PLACES["return"]) is not None
    may_come = name in EPISODIC or name in learned or name.startswith("evaluation/")
    return all_there and not may_come and _there(result, name) is None


def _learned(learners: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for module, values in learners.items():
        if module.startswith("__") or not isinstance(values, Mapping):
            continue
        group = "" if module == ONLY_MODULE else f"{module}/"
        for name in values:
            if "loss" in name or name in _LEARNED:
                yield f"{group}{'loss' if name == 'total_loss' else name}", _number(values, name)


def _number(result: Result, place: str) -> float | None:
    """Return a finite number, None if it is missing or not finite."""
    value = _there(result, place)
    return value if value is not None and math.isfinite(value) else None


def _there(result: Result, place: str) -> float | None:
    """Return a number, also one that is not finite; None if it is missing."""
    value: Any = result
    for name in place.split("/"):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return number_of(value)


def may_be(name: str) -> bool:
    """Return whether a trial may report a metric of this name."""
    return name in PLACES or "/" in name or "loss" in name or name in _LEARNED
