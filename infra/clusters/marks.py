"""Processes that belong to something of ours on a machine, recognised by a variable in their
environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from regrow.infra.machine.processes import marked

_TICK = 0.2
_COMMAND = 200
"""Most characters shown of a process's command."""


def left(*marks: str) -> list[str]:
    """Return the ids and commands of the processes here that have all marks (NAME=value)."""
    found = []
    for process in marked(*marks):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found.append(f"{process} {b' '.join(words).decode(errors='replace')[:_COMMAND].strip()}")
    return found


def kill(*marks: str) -> None:
    """Kill all processes with the marks, except this one's ancestors: a shell, a supervisor."""
    spared = set(_ancestors(os.getpid()))
    while there := [process for process in marked(*marks) if process not in spared]:
        for process in there:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_TICK)


def _ancestors(process: int) -> Iterator[int]:
    while process > 1:
        yield process
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            return
