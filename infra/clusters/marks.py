"""Processes that belong to something of ours on a machine, recognised by a variable in their
environment.
"""

from __future__ import annotations

import os
from pathlib import Path

from regrow.infra.machine.descendants import ancestors
from regrow.infra.machine.processes import kill_all, marked


def left(*marks: str) -> list[str]:
    """Return the ids and commands of the processes here that have all marks (NAME=value)."""
    found = []
    for process in marked(*marks):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found.append(f"{process} {b' '.join(words).decode(errors='replace')[:200].strip()}")
    return found


def kill(*marks: str) -> None:
    """Kill all processes with the marks, except this one's ancestors: a shell, a supervisor."""
    spared = ancestors(os.getpid())
    kill_all(lambda: [process for process in marked(*marks) if process not in spared])
