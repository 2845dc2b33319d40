"""A W&B sweep file as an experiment file: its program, its folder, which `wandb` it imports."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regrow.infra.state.spec_file import Check
from regrow.infra.state.yaml_file import located, place
from regrow.integrations.wandb.sweeps import PACKAGE, is_sweep, theirs, translated
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

CHOICE = "REGROW_WANDB"
"""The user's variable for which `wandb` a sweep's program imports; read with the file."""


class SweepFile:
    """See Format."""

    def matches(self, data: Mapping[str, Any]) -> bool:
        return is_sweep(data)

    def read(
        self,
        data: dict[str, Any],
        path: Path,
        trials: int | None,
        echo: Callable[[str], object],
        check: Check,
    ) -> Spec:
        try:
            ours, notes = translated(data, path.stem, trials)
            folder = _folder_of(data, path)
        except SpecError as error:
            raise located(error, path) from None
        package = os.environ.get(CHOICE) or "standin"
        if package not in ("standin", "real"):
            hint = "write real for W&B's own package, or leave it out for regrow's stand-in"
            raise UserError(f"{CHOICE}: {package!r} is not known; {hint}")
        ours["env"] = {**ours["env"], PACKAGE: package}
        try:
            spec = check({**ours, "working_dir": str(folder)}, None, folder)
        except SpecError as error:
            raise located(theirs(error, data), path) from None
        for key, text in notes:
            echo(f"{place(key, path)}: {key}: {text}")
        return spec


def _folder_of(sweep: dict[str, Any], path: Path) -> Path:
    """Return its program's folder: the file's or, as for W&B's agent, the current one."""
    here, program = path.parent.resolve(), sweep.get("program")
    if not isinstance(program, str) or (here / program).is_file():
        return here
    if (Path.cwd() / program).is_file():
        return Path.cwd()
    hint = "write it relative to the sweep file's folder"
    raise SpecError("program", program, f"there is no file {here / program}", hint)
