"""The fleets of the machine on which this process runs, as the machine's folder describes them, if
machines of one come on need.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regrow.infra.machine.commands import run
from regrow.search.planning.sizes import Group
from regrow.tasks.errors import RegrowError

FLEET = "REGROW_FLEET"
"""Variable with the folder of `fleet.json` on a machine of a fleet; unset elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFleet:
    """What an agent knows of its cloud.

    Attributes:
        folder: of `machine.py`, which asks the cloud with the machine's rights.
        python: the interpreter that has what `machine.py` needs.
        groups: of the cluster, as if they had no machines.
        on_need: whether this machine came on need.
        idle: seconds without a trial after which it leaves then.

    """

    folder: Path
    python: str
    groups: tuple[Group, ...]
    on_need: bool
    idle: float

    def sized(self) -> list[Group]:
        """Return the groups with the machines that they have. Raises RegrowError."""
        there = json.loads(self._asked("machines"))
        return [replace(one, there=int(there.get(one.name, 0))) for one in self.groups]

    def start(self, group: str, count: int) -> None:
        """Start more machines. Raises RegrowError with the cloud's message."""
        self._asked("start", group, str(count))

    def _asked(self, *words: str) -> str:
        command: Sequence[str] = (self.python, str(self.folder / "machine.py"), *words)
        # Without the user's variables: the machine's own rights are meant, and its own Python.
        plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        try:
            done = run(command, seconds=120.0, who="the cloud", env=plain)
        except OSError as error:
            raise RegrowError(f"the cloud: {error}") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise RegrowError(f"the cloud: {lines[-1]}")
        return done.stdout


def here() -> OwnFleet | None:
    """Return the fleets of this machine; None if it is of none, or all groups have their machines
    from the start.
    """
    if not (folder := os.environ.get(FLEET)):
        return None
    found = json.loads((Path(folder) / "fleet.json").read_text())
    if "sizes" not in found:
        return None
    return OwnFleet(
        folder=Path(folder),
        python=found["python"],
        groups=tuple(Group(name=a, market=b, most=c) for a, b, c in found["sizes"]),
        on_need=found["on_need"],
        idle=found["idle"],
    )
