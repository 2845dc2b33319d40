"""The folder of an embedded Prefect server: who uses it, whether its server runs, and where that listens.

users.lock   held shared by each process that uses the server; the server takes it for itself once nobody does, and ends
start.lock   held by whoever starts the server, or looks whether it has to
server.lock  held by the server's process until it ends, however it ends
server.json  pid and address of the last server
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from regrow.tasks.errors import RegrowError

TICK = 0.01
"""Seconds between two looks at what another process is about to do."""


def locked(path: Path, kind: int, seconds: float = 15.0) -> TextIOWrapper:
    """Take a flock that others hold only briefly; it ends with the file or with this process."""
    file = path.open("a")
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise RegrowError(f"{path} is locked by another process that does not let go") from None
            time.sleep(TICK)


def runs(home: Path) -> bool:
    """Whether a server of `home` holds its lock."""
    try:
        with (home / "server.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def try_lock(path: Path) -> TextIOWrapper | None:
    """Take a flock for this process alone; None if another has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_leaving(home: Path, gone: Callable[[], bool]) -> bool:
    """Whether the server took the users' lock for itself; it needs a moment, so look for a while."""
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline and not gone():
        with (home / "users.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        time.sleep(TICK)
    return gone()


def read_record(home: Path) -> dict[str, Any]:
    """What the last server of `home` was started with (pid, port, api_url); empty where none was."""
    try:
        return dict(json.loads((home / "server.json").read_text()))
    except (OSError, ValueError):
        return {}
