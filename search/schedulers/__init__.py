"""Schedulers: which trials continue. The registry; to add a scheduler, write a file beside this one
and name it here; no other code names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from regrow.search.errors import SpecError
from regrow.search.options import Registry, build, chosen, is_path
from regrow.search.schedulers.base import Candidate, Foreseeing, Scheduler, SchedulerPort
from regrow.search.space.setting import Setting

REGISTRY = Registry(
    "schedule",
    "regrow.search.schedulers",
    {
        "fifo": ("fifo:Fifo", "none fifoscheduler noppruner"),
        "asha": (
            "asha:Asha",
            "ashascheduler successivehalvingpruner adaptiveasha asyncasha asynchalving",
        ),
        "successive_halving": ("successive_halving:SuccessiveHalving", "syncsuccessivehalving"),
        "hyperband": ("successive_halving:Hyperband", "hyperbandscheduler hyperbandforbohb"),
        "async_hyperband": (
            "asha:AsyncHyperband",
            "asynchyperband asynchyperbandscheduler hyperbandpruner",
        ),
        "pasha": ("pasha:Pasha", ""),
        "percentile": ("median:Percentile", "percentilepruner"),
        "median": ("median:Median", "medianstopping medianstoppingrule medianpruner"),
        "pbt": ("pbt:Pbt", "populationbasedtraining"),
        "dehb": ("dehb:DehbScheduler", ""),
        "resource_changing": ("resource_changing:ResourceChanging", ""),
        "pb2": ("pb2:Pb2", "populationbasedbandits"),
        "pbt_replay": ("pbt_replay:PbtReplay", "populationbasedtrainingreplay"),
    },
)
NAMES = tuple(REGISTRY.known)
DEFAULT = "fifo"
"""The schedule of a specification that names none: every trial runs to its end."""
PROBED = 100
"""Trials by which `check_acts` tests a scheduler; several, as brackets are drawn at random."""
FIRST_DECISION = ("grace_period", "perturbation_interval", "interval")
"""Options that set when the first decision on a trial is due."""
_PORT = ("apply", "first", "decide", "promote", "surplus")


def make(schedule: object, setting: Setting) -> SchedulerPort:
    """Return the scheduler that `schedule` (a name or import path, or {it: options}) specifies.
    Raises SpecError for a name, an option or a setting that it cannot use.
    """
    name, options, make_it = REGISTRY.found(schedule)
    if len(setting.modes) > 1 and not getattr(make_it, "several", False):
        problem = "decides by one metric, and there are several"
        raise SpecError("schedule", name, problem, f"write schedule: {DEFAULT}")
    if not (
        isinstance(make_it, type)
        and all(callable(getattr(make_it, method, None)) for method in _PORT)
    ):
        hint = "derive it from regrow.testing.Scheduler"
        raise SpecError("schedule", name, "is no scheduler", hint)
    if getattr(make_it, "needs_max_steps", True) and setting.max_steps is None:
        raise SpecError("max_steps", None, f"is missing, {name} needs it", "write max_steps: 27")
    return cast("SchedulerPort", build(make_it, options, key=f"schedule.{name}", setting=setting))


def kind(schedule: object) -> type[Scheduler]:
    """Return the class of a registered scheduler; the base class for a user's."""
    return cast("type[Scheduler]", REGISTRY.registered(schedule) or Scheduler)


def named(schedule: object) -> list[str]:
    """Return the name of a schedule, and those of the schedules inside of it."""
    options = next(iter(schedule.values()), None) if isinstance(schedule, dict) else None
    inside = (
        named(options["schedule"]) if isinstance(options, dict) and "schedule" in options else []
    )
    return [chosen(schedule), *inside]


def check_acts(schedule: object, setting: Setting, trials: int) -> None:
    """Raise SpecError for a registered scheduler that would never decide anything, whatever trials
    report and however many follow.
    """
    name, scheduler = chosen(schedule), make(schedule, setting)
    if (
        not trials
        or not isinstance(scheduler, Scheduler)
        or not scheduler.decides
        or scheduler.takes_budgets
    ):
        return
    for number in range(PROBED):
        scheduler.apply(Candidate(trial=number, config={}, state={}))
    if all(scheduler.first(number, 0) is None for number in range(PROBED)):
        options = REGISTRY.split(schedule)[1]
        key = next((key for key in FIRST_DECISION if key in options), None)
        hint = f"write {f'a smaller {key}' if key else 'more steps'}, or schedule: {DEFAULT}"
        problem = (
            "decides nothing: no trial is looked at before its last step, max_steps"
            f" ({setting.max_steps})"
        )
        where = f"schedule.{name}" + (f".{key}" if key else "")
        raise SpecError(where, options[key] if key else name, problem, hint)


def most_steps(schedule: object, setting: Setting, trials: int) -> int | None:
    """Return the most steps of so many trials, None for no limit. A user's is not asked."""
    scheduler = None if any(is_path(name) for name in named(schedule)) else make(schedule, setting)
    if isinstance(scheduler, Foreseeing):
        return scheduler.most_steps(trials)
    return None if setting.max_steps is None else trials * setting.max_steps


def replaying(policy: Sequence[Sequence[Any]]) -> str | dict[str, dict[str, Any]]:
    """Return the schedule of one trial that follows [step, configuration] pairs."""
    return {"pbt_replay": {"policy": policy}} if policy else DEFAULT
