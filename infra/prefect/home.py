"""The folder of an embedded Prefect server: who uses it, whether its server runs, and where that listens.

users.lock   held shared by each process that uses the server; the server takes it for itself once nobody does, and ends
start.lock   held by whoever starts the server, or looks whether it has to
server.lock  held by the server's process until it ends, however it ends
stays.lock   held by a station, whose server has schedules and automations to look after
host         where a station has the server listen beside the loopback; empty for nowhere
server.json  pid and address of the last server, and whether it looks after schedules
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from regrow.infra.machine import locks
from regrow.infra.state import passwords
from regrow.tasks.errors import RegrowError, UserError

TICK = 0.01
"""Seconds between two looks at what another process is about to do."""
_PATIENCE_SECONDS = 15.0
"""How long others may hold the locks that are held only briefly."""
_LOOK_SECONDS = 0.5
"""Whoever looks whether there is a station holds its lock for an instant."""


def use(home: Path) -> IO[str]:
    """The users' lock, beside other users: while it is open the server does not leave. Raises RegrowError as `start` does."""
    return _briefly_held(home / "users.lock", shared=True)


def start(home: Path) -> IO[str]:
    """The starters' lock. Raises RegrowError if somebody does not let go of it."""
    return _briefly_held(home / "start.lock")


def stay(home: Path, host: str | None = None) -> IO[str]:
    """The station's lock: while it is open the server of `home` serves schedules. Raises UserError if a station has it.

    `host`: where the server listens beside the loopback, None for nowhere.
    """
    file = locks.take(home / "stays.lock", wait=_LOOK_SECONDS)
    if file is None:
        raise UserError(f"a station has the Prefect server of {home} already; end that first with `regrow down`")
    (home / "host").write_text(host or "")
    return file


def stays(home: Path) -> bool:
    """Whether a station has the server of `home`."""
    return locks.is_held(home / "stays.lock")


def host(home: Path) -> str | None:
    """Where the server of `home` is to listen beside the loopback, as a station has it; None for nowhere."""
    try:
        return (stays(home) and (home / "host").read_text()) or None
    except FileNotFoundError:
        return None


def auth(home: Path) -> str | None:
    """USER:PASSWORD for the server of `home`, which a station that listens elsewhere asks for; None where none was made."""
    known = passwords.read(home.parent)
    return None if known is None else known.prefect_auth


def _briefly_held(path: Path, *, shared: bool = False) -> IO[str]:
    file = locks.take(path, shared=shared, wait=_PATIENCE_SECONDS)
    if file is None:
        raise RegrowError(f"{path} is locked by another process that does not let go")
    return file


def is_leaving(home: Path, gone: Callable[[], bool]) -> bool:
    """Whether the server took the users' lock for itself; it needs a moment, so look for a while."""
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline and not gone():
        if locks.is_held(home / "users.lock"):
            return True
        time.sleep(TICK)
    return gone()


def read_record(home: Path) -> dict[str, Any]:
    """What the last server of `home` was started with (pid, port, api_url); empty where none was."""
    try:
        return dict(json.loads((home / "server.json").read_text()))
    except (OSError, ValueError):
        return {}
