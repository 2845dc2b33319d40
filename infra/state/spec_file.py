"""Reading a specification from a YAML file, and writing one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regrow.infra.state.yaml_file import located, read_map, write_map
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.search.spec.wandb import METRIC, is_sweep, theirs, translated
from regrow.tasks.trainable import functions


def read_spec(path: Path) -> Spec:
    """The specification in a file; its folder becomes `working_dir` where none is given.

    Raises UserError for a file that cannot be read or is not YAML, SpecError for what it says.
    """
    data = read_map(path, "experiment", "regrow schema")
    if is_sweep(data):
        return _of_sweep(data, path)
    folder = data.get("working_dir")
    if folder is None or isinstance(folder, str):
        data = {**data, "working_dir": str((path.parent / Path(folder or ".").expanduser()).resolve())}
    try:
        return _checked(data, folder, Path(data["working_dir"]) if isinstance(data.get("working_dir"), str) else path.parent)
    except SpecError as error:
        raise located(error, path) from None


def _of_sweep(sweep: dict[str, Any], path: Path) -> Spec:
    """The specification of W&B's sweep file; what is only like W&B's is said on the standard error. Raises SpecError."""
    try:
        data, notes = translated(sweep, path.stem)
    except SpecError as error:
        raise located(error, path) from None
    if os.environ.get(METRIC) == "real":
        del data["env"]
    try:
        spec = _checked({**data, "working_dir": str(path.parent.resolve())}, None, path.parent)
    except SpecError as error:
        raise located(theirs(error), path) from None
    for _note in notes:
        pass
    return spec


def _checked(data: dict[str, Any], written: Any, folder: Path) -> Spec:
    """The specification, whose code lies in `folder`, written as `written`. Raises SpecError."""
    place, _, name = data["trainable"].partition(":") if isinstance(data.get("trainable"), str) else ("", "", "x")
    if place.endswith(".py") and not name and (folder / place).is_file():
        names = functions(folder / place)
        hint = f"write {' or '.join(f'{place}:{one}' for one in names) or 'file.py:function'}"
        raise SpecError("trainable", data["trainable"], "names no function or class", hint)
    spec = Spec.parse(data)
    if not folder.is_dir():
        problem, hint = f"there is no folder {folder}", "write it relative to the specification's folder"
        raise SpecError(key="working_dir", value=written, problem=problem, hint=hint)
    if spec.trainable == "pickled":
        problem, hint = "is for experiments from Python", "write file.py:function"
        raise SpecError(key="trainable", value=spec.trainable, problem=problem, hint=hint)
    if place.endswith(".py") and not (folder / place).is_file():
        problem, hint = f"there is no file {folder / place}", "write it relative to the specification's folder"
        raise SpecError(key="trainable", value=spec.trainable, problem=problem, hint=hint)
    return spec


def published_spec(spec: Mapping[str, Any]) -> bytes:
    """The specification as YAML that `regrow run` takes; without the values of environment variables, and without places."""
    kept = {key: value for key, value in spec.items() if key not in ("state", "working_dir")}
    if kept.get("env"):
        kept["env"] = dict.fromkeys(kept["env"])
    return write_map(kept)
