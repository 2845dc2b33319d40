"""Translates Ray Tune's schedulers: name, options, and the metric that is their time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regrow.integrations.tune.recorded import given as given_to
from regrow.integrations.tune.recorded import is_users, recorded
from regrow.search.errors import SpecError

ITERATION = "training_iteration"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedScheduler:
    """The translation of a Tune scheduler.

    Attributes:
        clock: the metric by which it counts time, None for steps.
        most: its max_t.
        mutations: the parameters that a population changes, with their possible values.
        explored: the user's function that adjusts a mutated configuration.
        own: a scheduler of the user's class, which decides in the script's process; None for none.

    """

    schedule: str | dict[str, Any] = "fifo"
    clock: str | None = None
    most: int | None = None
    metric: Any = None
    mode: Any = None
    mutations: Mapping[str, Any] | None = None
    explored: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    own: Any = None


def scheduling(scheduler: Any, say: Callable[[str], None]) -> TranslatedScheduler:
    """Translate a scheduler; None: none. Raises SpecError for one without a counterpart."""
    if scheduler is None:
        return TranslatedScheduler()
    if isinstance(scheduler, str):
        from ray.tune import create_scheduler

        scheduler = recorded(create_scheduler)(scheduler)
    name = type(scheduler).__name__
    if name == "FIFOScheduler":
        return TranslatedScheduler()
    make = _MAKE.get(name)
    if make is None and is_users(scheduler):
        say(
            f"scheduler: {name} decides in the script's process, up to a second after each report;"
            " STOP is carried out, and anything else continues the trial"
        )
        return TranslatedScheduler(own=scheduler)
    if make is None:
        raise SpecError("scheduler", name, "has no counterpart", f"take one of {', '.join(_MAKE)}")
    given = given_to(scheduler)
    found = make(given, say)
    for line in given.unused():
        say(line)
    return found


def _asha(given: Mapping[str, Any], say: Callable[[str], None]) -> TranslatedScheduler:
    factor = _whole("reduction_factor", given["reduction_factor"], say)
    options = {"grace_period": max(1, int(given["grace_period"])), "reduction_factor": factor}
    brackets = given["brackets"]
    schedule = {"asha": options}
    if brackets != 1:
        schedule = {"async_hyperband": {**options, "brackets": brackets}}
    return _timed(given, schedule, most=int(given["max_t"]))


def _hyperband(given: Mapping[str, Any], say: Callable[[str], None]) -> TranslatedScheduler:
    factor = _whole("reduction_factor", given["reduction_factor"], say)
    return _timed(given, {"hyperband": {"reduction_factor": factor}}, most=int(given["max_t"]))


def _median(given: Mapping[str, Any], _say: Callable[[str], None]) -> TranslatedScheduler:
    options = {
        "grace_period": max(1, int(given["grace_period"])),
        "min_samples_required": given["min_samples_required"],
        "interval": max(1, int(given["min_time_slice"])),
    }
    return _timed(given, {"median": options})


def _population(given: Mapping[str, Any], say: Callable[[str], None]) -> TranslatedScheduler:
    options = {
        "perturbation_interval": max(1, int(given["perturbation_interval"])),
        "quantile_fraction": given["quantile_fraction"],
        "resample_probability": given["resample_probability"],
        "perturbation_factors": list(given["perturbation_factors"]),
    }
    if given.get("burn_in_period"):
        say(
            f"scheduler: burn_in_period={given['burn_in_period']:g} is not kept: a population"
            " begins to exploit at once"
        )
    return _timed(
        given,
        {"pbt": options},
        mutations=given["hyperparam_mutations"] or {},
        explored=given["custom_explore_fn"],
    )


def _bandits(given: Mapping[str, Any], _say: Callable[[str], None]) -> TranslatedScheduler:
    options = {
        "perturbation_interval": max(1, int(given["perturbation_interval"])),
        "quantile_fraction": given["quantile_fraction"],
    }
    return _timed(
        given,
        {"pb2": options},
        mutations=_ranges(given["hyperparam_bounds"] or {}),
        explored=given["custom_explore_fn"],
    )


def _ranges(bounds: Mapping[str, Any]) -> dict[str, Any]:
    from ray import tune

    return {
        key: _ranges(one) if isinstance(one, Mapping) else tune.uniform(*one)
        for key, one in bounds.items()
    }


def _changing(given: Mapping[str, Any], say: Callable[[str], None]) -> TranslatedScheduler:
    inner = scheduling(given["base_scheduler"], say)
    given.get("resources_allocation_function")  # which the line below is about
    say(
        "scheduler: how many CPUs a trial has does not change; ResourceChangingScheduler is the"
        " scheduler inside of it"
    )
    return inner


def _timed(
    given: Mapping[str, Any], schedule: str | dict[str, Any], **more: Any
) -> TranslatedScheduler:
    clock = given.get("time_attr", ITERATION)
    return TranslatedScheduler(
        schedule=schedule,
        clock=None if clock == ITERATION else clock,
        metric=given.get("metric"),
        mode=given.get("mode"),
        **more,
    )


def _whole(key: str, value: float, say: Callable[[str], None]) -> int:
    """Round a reduction factor to an integer, which our schedulers need."""
    whole = max(2, round(value))
    if whole != value:
        say(f"scheduler: {key}={value:g} is {whole} here")
    return whole


_MAKE: Mapping[str, Callable[[Mapping[str, Any], Callable[[str], None]], TranslatedScheduler]] = {
    "AsyncHyperBandScheduler": _asha,
    "HyperBandScheduler": _hyperband,
    "HyperBandForBOHB": _hyperband,
    "MedianStoppingRule": _median,
    "PopulationBasedTraining": _population,
    "PB2": _bandits,
    "ResourceChangingScheduler": _changing,
}
