"""Schedulers: which trials continue. The registry; to add a scheduler, write a file beside this one
and name it here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from regrow.search.errors import SpecError
from regrow.search.options import build, chosen, imported, is_path, load, split
from regrow.search.schedulers.base import (
    FINAL,
    Action,
    Candidate,
    Decision,
    Drop,
    End,
    Final,
    Foreseeing,
    News,
    Opening,
    Revival,
    Scheduler,
    SchedulerPort,
    Start,
    Verdict,
    Widening,
)
from regrow.search.space.setting import Setting

__all__ = [
    "DEFAULT",
    "FINAL",
    "REGISTRY",
    "Action",
    "Candidate",
    "Decision",
    "Drop",
    "End",
    "Final",
    "Foreseeing",
    "News",
    "Opening",
    "Revival",
    "Scheduler",
    "SchedulerPort",
    "Start",
    "Verdict",
    "Widening",
    "check_acts",
    "kind",
    "make",
    "most_steps",
    "named",
    "replaying",
]

REGISTRY: Mapping[str, tuple[str, str]] = {
    "fifo": ("regrow.search.schedulers.fifo", "Fifo"),
    "asha": ("regrow.search.schedulers.asha", "Asha"),
    "successive_halving": ("regrow.search.schedulers.successive_halving", "SuccessiveHalving"),
    "hyperband": ("regrow.search.schedulers.hyperband", "Hyperband"),
    "async_hyperband": ("regrow.search.schedulers.async_hyperband", "AsyncHyperband"),
    "pasha": ("regrow.search.schedulers.pasha", "Pasha"),
    "percentile": ("regrow.search.schedulers.percentile", "Percentile"),
    "median": ("regrow.search.schedulers.median", "Median"),
    "pbt": ("regrow.search.schedulers.pbt", "Pbt"),
    "dehb": ("regrow.search.schedulers.dehb", "Dehb"),
    "resource_changing": ("regrow.search.schedulers.resource_changing", "ResourceChanging"),
    "pb2": ("regrow.search.schedulers.pb2", "Pb2"),
    "pbt_replay": ("regrow.search.schedulers.pbt_replay", "PbtReplay"),
}
NAMES = tuple(REGISTRY)
ELSEWHERE: Mapping[str, str] = {
    "fifo": "none fifoscheduler noppruner",
    "asha": "ashascheduler successivehalvingpruner adaptiveasha asyncasha asynchalving",
    "successive_halving": "syncsuccessivehalving",
    "hyperband": "hyperbandscheduler hyperbandforbohb",
    "async_hyperband": "asynchyperband asynchyperbandscheduler hyperbandpruner",
    "median": "medianstopping medianstoppingrule medianpruner",
    "percentile": "percentilepruner",
    "pbt": "populationbasedtraining",
    "pbt_replay": "populationbasedtrainingreplay",
    "pb2": "populationbasedbandits",
}
"""Names in other tools, without case and underscores: for hints."""
DEFAULT = "fifo"
"""The schedule of a specification that names none: every trial runs to its end."""
PROBED = 100
"""Number of trials with which `check_acts` tests whether a scheduler would ever decide. Several,
because brackets are drawn at random.
"""
FIRST_DECISION = ("grace_period", "perturbation_interval", "interval")
"""Options that set when the first decision on a trial is due."""
_PORT = ("apply", "first", "decide", "promote", "surplus")


def make(schedule: object, setting: Setting) -> SchedulerPort:
    """Return the scheduler that `schedule` (a name, or {name: options}) specifies, made for
    `setting`.

    A name is one of the registry, or the import path of a scheduler's class. Raises SpecError for a
    name, an option or a setting that it cannot use.
    """
    name, options = split(schedule, key="schedule", known=REGISTRY, elsewhere=ELSEWHERE)
    make_it: Any = imported(name, key="schedule") if is_path(name) else load(*REGISTRY[name])
    if len(setting.modes) > 1 and not getattr(make_it, "several", False):
        raise SpecError(
            "schedule",
            name,
            "decides by one metric, and there are several",
            f"write schedule: {DEFAULT}",
        )
    if not (
        isinstance(make_it, type)
        and all(callable(getattr(make_it, method, None)) for method in _PORT)
    ):
        raise SpecError(
            "schedule", name, "is no scheduler", "derive it from regrow.testing.Scheduler"
        )
    if getattr(make_it, "needs_max_steps", True) and setting.max_steps is None:
        raise SpecError(
            key="max_steps",
            value=None,
            problem=f"is missing, {name} needs it",
            hint="write max_steps: 27",
        )
    return cast("SchedulerPort", build(make_it, options, key=f"schedule.{name}", setting=setting))


def kind(schedule: object) -> type[Scheduler]:
    """Return the class of a registered scheduler. A user's scheduler is not imported here; for it
    the base class is returned.
    """
    place = REGISTRY.get(chosen(schedule))
    return Scheduler if place is None else cast("type[Scheduler]", load(*place))


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
        options = split(schedule, key="schedule", known=REGISTRY, elsewhere=ELSEWHERE)[1]
        key = next((key for key in FIRST_DECISION if key in options), None)
        hint = f"write {f'a smaller {key}' if key else 'more steps'}, or schedule: {DEFAULT}"
        problem = (
            "decides nothing: no trial is looked at before its last step, max_steps"
            f" ({setting.max_steps})"
        )
        raise SpecError(
            f"schedule.{name}" + (f".{key}" if key else ""),
            options[key] if key else name,
            problem,
            hint,
        )


def most_steps(schedule: object, setting: Setting, trials: int) -> int | None:
    """Return the most steps that this number of trials may do, None if nothing limits them. A
    user's scheduler is not asked.
    """
    scheduler = None if any(is_path(name) for name in named(schedule)) else make(schedule, setting)
    if isinstance(scheduler, Foreseeing):
        return scheduler.most_steps(trials)
    return None if setting.max_steps is None else trials * setting.max_steps


def replaying(policy: Sequence[Sequence[Any]]) -> str | dict[str, dict[str, Any]]:
    """Return the schedule by which one trial follows a policy: [step, configuration] pairs with
    rising steps.
    """
    return {"pbt_replay": {"policy": policy}} if policy else DEFAULT
