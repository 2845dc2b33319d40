"""Reading a specification from a YAML file, and writing one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regrow.infra.state.yaml_file import located, place, read_map, write_map
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.search.spec.wandb import DOTTED, PACKAGE, is_sweep, theirs, translated
from regrow.tasks.errors import UserError
from regrow.tasks.trainable import functions

_CHOICE = "REGROW_WANDB"
"""The user's own variable for which `wandb` the program of a sweep file is to see; asked when the file is read."""


def _untold(_line: str) -> None:
    """Nobody is there to read it, or it was told before."""


def read_spec(path: Path, *, trials: int | None = None, tell: Callable[[str], object] = _untold) -> Spec:
    """The specification in a file; its folder becomes `working_dir` where none is given.

    Of a sweep file of W&B's, `tell` gets a line for each thing that is only like what W&B does; `trials` stands for a `run_cap`
    that is missing. Raises UserError for a file that cannot be read or is not YAML, SpecError for what it says.
    """
    data = read_map(path, "experiment", "regrow schema")
    if is_sweep(data):
        return _of_sweep(data, path, trials, tell)
    folder = data.get("working_dir")
    if folder is None or isinstance(folder, str):
        data = {**data, "working_dir": str((path.parent / Path(folder or ".").expanduser()).resolve())}
    try:
        return _checked(data, folder, Path(data["working_dir"]) if isinstance(data.get("working_dir"), str) else path.parent)
    except SpecError as error:
        raise located(error, path) from None


def _of_sweep(sweep: dict[str, Any], path: Path, trials: int | None, tell: Callable[[str], object]) -> Spec:
    try:
        data, notes = translated(sweep, path.stem, trials)
        folder = _folder_of(sweep, path)
    except SpecError as error:
        raise located(error, path) from None
    data["env"] = {**data["env"], PACKAGE: _chosen()}
    try:
        spec = _checked({**data, "working_dir": str(folder)}, None, folder)
    except SpecError as error:
        raise located(theirs(error, sweep), path) from None
    for key, text in notes:
        tell(f"{place(key, path)}: {key}: {text}")
    return spec


def _folder_of(sweep: dict[str, Any], path: Path) -> Path:
    """Where its program is: the file's folder or, as W&B's agent has it, the one in which we are. Raises SpecError."""
    here, program = path.parent.resolve(), sweep.get("program")
    if not isinstance(program, str) or (here / program).is_file():
        return here
    if (Path.cwd() / program).is_file():
        return Path.cwd()
    raise SpecError("program", program, f"there is no file {here / program}", "write it relative to the sweep file's folder")


def _chosen() -> str:
    """Which `wandb` its program is to see. Raises UserError."""
    chosen = os.environ.get(_CHOICE) or "standin"
    if chosen not in ("standin", "real"):
        hint = "write real for W&B's own package, or leave it out for regrow's stand-in"
        raise UserError(f"{_CHOICE}: {chosen!r} is not known; {hint}")
    return chosen


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
        kept["env"] = {name: value if name in (PACKAGE, DOTTED) else None for name, value in kept["env"].items()}
    return write_map(kept)
