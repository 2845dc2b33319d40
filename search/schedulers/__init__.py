"""Schedulers: which trials go on. The registry; to add one, write a file beside this and name it here, and nowhere else."""

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
    "DEFAULT", "FINAL", "REGISTRY", "Action", "Candidate", "Decision", "Drop", "End", "Final", "Foreseeing", "News", "Opening",
    "Revival", "Scheduler", "SchedulerPort", "Start", "Verdict", "Widening", "kind", "make", "most_steps", "named", "replaying",
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
"""Their names in other tools, without case and underscores: for hints."""
DEFAULT = "fifo"
"""The one of a specification that names none: every trial runs to its end."""
_PORT = ("apply", "first", "decide", "promote", "surplus")


def make(schedule: object, setting: Setting) -> SchedulerPort:
    """The scheduler that `schedule` (a name, or {name: options}) asks for, made for `setting`.

    A name is one of the registry, or the import path of a scheduler's class. Raises SpecError for a name, an option or a
    setting that it cannot use.
    """
    name, options = split(schedule, key="schedule", known=REGISTRY, elsewhere=ELSEWHERE)
    make_it: Any = imported(name, key="schedule") if is_path(name) else load(*REGISTRY[name])
    if len(setting.modes) > 1 and not getattr(make_it, "several", False):
        raise SpecError("schedule", name, "decides by one metric, and there are several", f"write schedule: {DEFAULT}")
    if not (isinstance(make_it, type) and all(callable(getattr(make_it, method, None)) for method in _PORT)):
        raise SpecError("schedule", name, "is no scheduler", "derive it from regrow.testing.Scheduler")
    if getattr(make_it, "needs_max_steps", True) and setting.max_steps is None:
        raise SpecError(key="max_steps", value=None, problem=f"is missing, {name} needs it", hint="write max_steps: 27")
    return cast("SchedulerPort", build(make_it, options, key=f"schedule.{name}", setting=setting))


def kind(schedule: object) -> type[Scheduler]:
    """The class of a registered scheduler; of a user's own, which is not imported here, nothing is known but the port."""
    place = REGISTRY.get(chosen(schedule))
    return Scheduler if place is None else cast("type[Scheduler]", load(*place))


def named(schedule: object) -> list[str]:
    """The name of a schedule, and those of the ones inside of it."""
    options = next(iter(schedule.values()), None) if isinstance(schedule, dict) else None
    inside = named(options["schedule"]) if isinstance(options, dict) and "schedule" in options else []
    return [chosen(schedule), *inside]


def most_steps(schedule: object, setting: Setting, trials: int) -> int | None:
    """Steps that so many trials may do at most, None where nothing limits them. A user's own scheduler is not asked."""
    scheduler = None if any(is_path(name) for name in named(schedule)) else make(schedule, setting)
    if isinstance(scheduler, Foreseeing):
        return scheduler.most_steps(trials)
    return None if setting.max_steps is None else trials * setting.max_steps


def replaying(policy: Sequence[Sequence[Any]]) -> str | dict[str, dict[str, Any]]:
    """The schedule by which one trial follows a policy: [step, configuration], rising."""
    return {"pbt_replay": {"policy": policy}} if policy else DEFAULT
