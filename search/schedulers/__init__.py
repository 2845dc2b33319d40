"""Schedulers: which trials go on. The registry; to add one, write a file beside this and name it here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.options import build, imported, is_path, load, split
from regrow.search.schedulers.base import FINAL, Action, Candidate, Final, Scheduler, Verdict
from regrow.search.setting import Setting

__all__ = ["FINAL", "REGISTRY", "Action", "Candidate", "Final", "Scheduler", "Verdict", "make"]

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


def make(schedule: object, setting: Setting) -> Scheduler:
    """The scheduler that `schedule` (a name, or {name: options}) asks for, made for `setting`.

    A name is one of the registry, or the import path of a scheduler's class. Raises SpecError for a name, an option or a
    setting that it cannot use.
    """
    name, options = split(schedule, key="schedule", known=REGISTRY)
    make_it: Any = imported(name, key="schedule") if is_path(name) else load(*REGISTRY[name])
    if name != "fifo" and len(setting.modes) > 1:
        raise SpecError("schedule", name, "decides by one metric, and there are several", "write schedule: fifo")
    if not (isinstance(make_it, type) and issubclass(make_it, Scheduler)):
        raise SpecError("schedule", name, "is no scheduler", "derive it from regrow.testing.Scheduler")
    if getattr(make_it, "needs_max_steps", True) and setting.max_steps is None:
        raise SpecError(key="max_steps", value=None, problem=f"is missing, {name} needs it", hint="write max_steps: 27")
    return build(make_it, options, key=f"schedule.{name}", setting=setting)
