"""Reading a specification from a YAML file, and writing one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from regrow.infra.log.reading import survey
from regrow.infra.machine.given_files import is_there, resolved
from regrow.infra.state.places import Places
from regrow.infra.state.yaml_file import located, read_map, write_map
from regrow.search.errors import SpecError
from regrow.search.history import specification
from regrow.search.spec import Spec
from regrow.search.spec.overrides import overridden
from regrow.tasks.attempt.trainable import functions
from regrow.tasks.errors import UserError

FORMATS = "regrow.spec_files"
"""The group of entry points that read other tools' files; each is a `Format`."""


class Format(Protocol):
    """A file format of another tool, which describes an experiment. For files without `space`."""

    def matches(self, data: Mapping[str, Any]) -> bool:
        """Return whether the file's content is of this format."""
        ...

    def read(
        self,
        data: dict[str, Any],
        path: Path,
        trials: int | None,
        echo: Callable[[str], object],
        check: Check,
    ) -> Spec:
        """Return the equivalent specification. Raises SpecError and UserError.

        Args:
            data: the file's content.
            path: the file.
            trials: how many trials there are if the file does not say; None: not known.
            echo: gets a line for each thing that only resembles what the tool does.
            check: makes the specification from regrow's keys, and checks that the code exists.

        """
        ...


Check = Callable[[dict[str, Any], Any, Path], Spec]
"""(keys, the folder as written, the folder of the code) -> specification. Raises SpecError."""


_LIMITS = ("budget", "stop.dollars", "stop.deadline")
"""Keys that have an option of their own."""


def _ignore(_line: str) -> None:
    """Ignore the line: there is no reader, or it was shown before."""


def read_spec(
    path: Path,
    *,
    trials: int | None = None,
    echo: Callable[[str], object] = _ignore,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Spec:
    """Return the specification in a file; its folder becomes `working_dir` if none is given.

    Raises UserError for a file that cannot be read or is not YAML, SpecError for invalid content.

    Args:
        path: the file.
        trials: number of trials for another tool's file that has none.
        echo: for another tool's file, gets a line for each thing that only resembles what the tool
            does.
        changes: values by dotted key that take the place of the file's; see `overridden`.

    """
    data = read_map(path, "experiment", "regrow schema")
    for point in entry_points(group=FORMATS) if "space" not in data else ():
        found: Format = point.load()()
        if found.matches(data):
            if changes:
                raise UserError(f"--set: {path} is another tool's file; change it there")
            return found.read(data, path, trials, echo, _checked)
    data = overridden(data, changes)
    folder, place = data.get("working_dir"), path.parent
    if folder is None or isinstance(folder, str):
        place = resolved(folder or ".", path.parent, where=f"{path}: working_dir: ")
        data = {**data, "working_dir": str(place)}
    try:
        str(data.get("working_dir")).encode()
    except UnicodeEncodeError:
        name = os.fsencode(data["working_dir"]).decode(errors="backslashreplace")
        raise UserError(
            f"the folder {name} of the code has a path that is not UTF-8, as Ray has all paths;"
            " rename it"
        ) from None
    try:
        return _checked(data, folder, place)
    except SpecError as error:
        raise set_by(error, changes) or located(error, path) from None


def set_by(error: SpecError, changes: Mapping[str, Any]) -> SpecError | None:
    """Return the error located at the `--set` that its key comes from; None if at none."""
    for key in changes:
        if key == error.key or key.startswith(f"{error.key}.") or error.key.startswith(f"{key}."):
            option = key.removeprefix("stop.")
            return error.at(f"--{option}" if key in _LIMITS else f"--set {key}")
    return None


def changed_spec(places: Places, name: str, changes: Mapping[str, Any]) -> Spec:
    """Return the specification of an experiment's last session with `changes`, see `overridden`.

    Raises UserError for an experiment that does not exist, SpecError for invalid changes.
    """
    log = survey(places.known(name))
    if log.created is None:
        raise UserError(f"the log of experiment {name!r} in {places.root} holds nothing")
    try:
        return Spec.parse(overridden(specification(log.created, log.opened).to_json(), changes))
    except SpecError as error:
        raise set_by(error, changes) or error from None


def _checked(data: dict[str, Any], written: Any, folder: Path) -> Spec:
    """Return the specification, whose code must be in `folder`, as `written`. Raises SpecError."""
    trainable = data.get("trainable")
    place, _, name = trainable.partition(":") if isinstance(trainable, str) else ("", "", "x")
    if place.endswith(".py") and not name and is_there(folder / place):
        names = functions(folder / place)
        hint = f"write {' or '.join(f'{place}:{one}' for one in names) or 'file.py:function'}"
        raise SpecError("trainable", data["trainable"], "names no function or class", hint)
    spec = Spec.parse(data)
    relative = "write it relative to the specification's folder"
    if not is_there(folder, folder=True):
        raise SpecError("working_dir", written, f"there is no folder {folder}", relative)
    if spec.trainable == "pickled":
        hint = "write file.py:function"
        raise SpecError("trainable", spec.trainable, "is for experiments from Python", hint)
    if place.endswith(".py") and not is_there(folder / place):
        raise SpecError("trainable", spec.trainable, f"there is no file {folder / place}", relative)
    return spec


def published_spec(spec: Mapping[str, Any]) -> bytes:
    """Return the specification as YAML for `regrow run`, without paths and without the values of
    environment variables other than REGROW_*.
    """
    kept = {key: value for key, value in spec.items() if key not in ("state", "working_dir")}
    if kept.get("env"):
        kept["env"] = {
            name: value if name.startswith("REGROW_") else None
            for name, value in kept["env"].items()
        }
    return write_map(kept)
