"""Reading a specification from a YAML file, and writing one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from regrow.infra.state.yaml_file import located, read_map, write_map
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.attempt.trainable import functions
from regrow.tasks.errors import UserError

FORMATS = "regrow.spec_files"
"""The group of entry points that read other tools' files; each is a `Format`."""


class Format(Protocol):
    """A file format of another tool that describes an experiment. Consulted for files without
    `space`.
    """

    def is_its(self, data: Mapping[str, Any]) -> bool:
        """Return whether the file's content is of this format."""
        ...

    def read(
        self,
        data: dict[str, Any],
        path: Path,
        trials: int | None,
        tell: Callable[[str], object],
        check: Check,
    ) -> Spec:
        """Return the equivalent specification. Raises SpecError and UserError.

        Args:
            data: the file's content.
            path: the file.
            trials: how many trials there are if the file does not say; None: not known.
            tell: gets a line for each thing that only resembles what the tool does.
            check: makes the specification from regrow's keys, and checks that the code exists.

        """
        ...


Check = Callable[[dict[str, Any], Any, Path], Spec]
"""(keys, the folder as written, the folder of the code) -> specification. Raises SpecError."""


def _untold(_line: str) -> None:
    """Ignore the line: there is no reader, or it was shown before."""


def read_spec(
    path: Path, *, trials: int | None = None, tell: Callable[[str], object] = _untold
) -> Spec:
    """Return the specification in a file; its folder becomes `working_dir` if none is given.

    Raises UserError for a file that cannot be read or is not YAML, SpecError for invalid content.

    Args:
        path: the file.
        trials: number of trials for another tool's file that has none.
        tell: for another tool's file, gets a line for each thing that only resembles what the tool
            does.

    """
    data = read_map(path, "experiment", "regrow schema")
    for point in entry_points(group=FORMATS) if "space" not in data else ():
        found: Format = point.load()()
        if found.is_its(data):
            return found.read(data, path, trials, tell, _checked)
    folder = data.get("working_dir")
    if folder is None or isinstance(folder, str):
        data = {
            **data,
            "working_dir": str((path.parent / Path(folder or ".").expanduser()).resolve()),
        }
    try:
        str(data.get("working_dir")).encode()
    except UnicodeEncodeError:
        name = os.fsencode(data["working_dir"]).decode(errors="backslashreplace")
        raise UserError(
            f"the folder {name} of the code has a path that is not UTF-8, as Ray has all paths;"
            " rename it"
        ) from None
    try:
        return _checked(
            data,
            folder,
            Path(data["working_dir"]) if isinstance(data.get("working_dir"), str) else path.parent,
        )
    except SpecError as error:
        raise located(error, path) from None


def _checked(data: dict[str, Any], written: Any, folder: Path) -> Spec:
    """Return the specification, checking that its code exists in `folder` (`written`: that folder
    as given). Raises SpecError.
    """
    place, _, name = (
        data["trainable"].partition(":")
        if isinstance(data.get("trainable"), str)
        else ("", "", "x")
    )
    if place.endswith(".py") and not name and (folder / place).is_file():
        names = functions(folder / place)
        hint = f"write {' or '.join(f'{place}:{one}' for one in names) or 'file.py:function'}"
        raise SpecError("trainable", data["trainable"], "names no function or class", hint)
    spec = Spec.parse(data)
    if not folder.is_dir():
        problem, hint = (
            f"there is no folder {folder}",
            "write it relative to the specification's folder",
        )
        raise SpecError(key="working_dir", value=written, problem=problem, hint=hint)
    if spec.trainable == "pickled":
        problem, hint = "is for experiments from Python", "write file.py:function"
        raise SpecError(key="trainable", value=spec.trainable, problem=problem, hint=hint)
    if place.endswith(".py") and not (folder / place).is_file():
        problem, hint = (
            f"there is no file {folder / place}",
            "write it relative to the specification's folder",
        )
        raise SpecError(key="trainable", value=spec.trainable, problem=problem, hint=hint)
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
