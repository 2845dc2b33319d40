"""Arguments of Ray Tune's classes and functions: each is used by the translation, or named
to the user as unused.

`Arguments` remembers which were read. What the user set and nothing read makes a line.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_WHY = {
    "trial_name_creator": "trials have numbers",
    "trial_dirname_creator": "trials have numbers",
    "chdir_to_trial_dir": "set RAY_CHDIR_TO_TRIAL_DIR",
    "reuse_actors": "each attempt is a new object in a warm process",
    "progress_reporter": "the live view is regrow's",
    "log_to_file": "what a trial prints is kept: `regrow logs`",
    "sync_config": "checkpoints go to the state root as they are made",
    "export_formats": "`regrow best --save` writes a trial's files",
    "checkpoint_at_end": "the last step of a trial is always saved",
    "log_config": "decisions are in the log: `regrow show`",
    "hard_stop": "trials that are stopped do not come back",
    "require_attrs": "the population needs nothing of the kind",
    "synch": "a population exploits without waiting for all",
    "stop_last_trials": "a trial ends at the last rung",
    "resume_unfinished": "what is unfinished continues",
}
"""Why an argument is not used, for those of which more can be said."""


class Arguments(Mapping[str, Any]):
    """The arguments of a call, and whether they were read. `who`: the class or function."""

    def __init__(self, who: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._who, self._given, self._defaults = who, given, defaults
        self._read: set[str] = set()

    @classmethod
    def of_settings(cls, settings: Any) -> Arguments:
        """Return the fields of one of Tune's settings, such as a RunConfig."""
        names = [one.name for one in dataclasses.fields(settings)]
        fresh = type(settings)()
        given, defaults = (
            {name: getattr(one, name) for name in names} for one in (settings, fresh)
        )
        return cls(type(settings).__name__, given, defaults)

    @classmethod
    def of_call(cls, who: str, function: Callable[..., Any], given: Mapping[str, Any]) -> Arguments:
        """Return the named arguments of a call. Raises TypeError for unknown ones."""
        parameters = inspect.signature(function).parameters
        kinds = {one.kind for one in parameters.values()}
        open_ended = inspect.Parameter.VAR_KEYWORD in kinds
        names = {
            name
            for name, one in parameters.items()
            if name != "self" and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        }
        for name in given:
            if name not in names and not open_ended:
                raise TypeError(f"{who}() got an unexpected keyword argument {name!r}")
        defaults = {name: parameters[name].default for name in names}
        return cls(who, {**defaults, **given}, defaults)

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._given[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._given:
            raise AttributeError(name)
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def unused(self) -> list[str]:
        """Return a line for each argument that was set, and not read."""
        lines = []
        for name, value in self._given.items():
            if name in self._read or _same(value, self._defaults.get(name)):
                continue
            text = " ".join(repr(value).split())
            shown = text if len(text) <= 60 else f"{text[:57]}..."
            why = f": {_WHY[name]}" if name in _WHY else ""
            lines.append(f"{self._who}: {name}={shown} is not used{why}")
        return lines


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - an array compares to an array; the user's class may raise
        return False
