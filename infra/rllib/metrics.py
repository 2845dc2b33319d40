"""What a trial reports of an iteration of RLlib's: names of ours that stay, of results whose names and places are RLlib's.

Pure: nothing of RLlib is imported, results are nested maps.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
"""Where each is, by its name."""
EPISODIC = ("return", "return_min", "return_max", "episode_length", "evaluation_return", "evaluation_length")
"""Those that an iteration does not have in which no episode ended."""
EVALUATED = {name: PLACES[name].replace("env_runners", "evaluation/env_runners", 1) for name in EPISODIC[:4]}
"""Where an algorithm that learns from recorded episodes has its own."""
ONLY_MODULE = "default_policy"
"""The module of an algorithm that has one; what it learns is named without it."""
_LEARNED = ("entropy", "td_error_mean", "qf_mean", "vf_explained_var", "curr_kl_coeff", "alpha_value")
"""What is told of learning, beside all losses."""


def measured(result: Result, asked: Iterable[str] = (), *, offline: bool = False) -> dict[str, float]:
    """The finite numbers of an iteration that a trial reports, by name.

    `asked`: names of the specification's metrics; one with a slash is the place of a number in RLlib's result. `offline`: the
    algorithm plays only to be evaluated.
    """
    places = {**PLACES, **(EVALUATED if offline else {}), **{name: name for name in asked if "/" in name}}
    found = {name: _number(result, place) for name, place in places.items()}
    found |= dict(_learned(result.get("learners", {})))
    return {name: value for name, value in found.items() if value is not None}


def will_not_be(name: str, result: Result) -> bool:
    """Whether a metric that an iteration did not have will not come either: it is none of episodes, and all else is there.

    A number that is not finite is there; what an evaluation finds may come later.
    """
    learned = {found for found, _ in _learned(result.get("learners", {}))}
    all_there = bool(learned) and _number(result, PLACES["return"]) is not None
    may_come = name in EPISODIC or name.startswith("evaluation/") or name in learned or _there(result, name) is not None
    return all_there and not may_come


def _learned(learners: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for module, told in learners.items():
        if module.startswith("__") or not isinstance(told, Mapping):
            continue
        group = "" if module == ONLY_MODULE else f"{module}/"
        for name in told:
            if "loss" in name or name in _LEARNED:
                yield f"{group}{'loss' if name == 'total_loss' else name}", _number(told, name)


def _number(result: Result, place: str) -> float | None:
    """None for what is not there, or is no finite number."""
    value = _there(result, place)
    return value if value is not None and math.isfinite(value) else None


def _there(result: Result, place: str) -> float | None:
    """A number, also one that is not finite; None for what is not there."""
    value: Any = result
    for name in place.split("/"):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return float(value) if isinstance(value, numbers.Real) else None


def may_be(name: str) -> bool:
    """Whether a trial may come to report a metric of this name."""
    return name in PLACES or "/" in name or "loss" in name or name in _LEARNED
