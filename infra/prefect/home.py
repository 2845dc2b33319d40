"""The folder of an embedded Prefect server: who uses it, whether the server runs, and where it
listens.

* users.lock: shared lock of each process that uses the server; the server locks it exclusively once
  there is none, and ends
* start.lock: held by a process that starts the server, or checks whether it must
* server.lock: held by the server's process until it ends, in any way
* stays.lock: held by a station, whose server handles schedules and automations
* host: where a station has the server listen in addition to the loopback; empty: nowhere
* server.json: pid and address of the last server, and whether it handles schedules
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from regrow.infra.machine import locks, private_files
from regrow.infra.machine.supervised import until
from regrow.infra.state import passwords
from regrow.tasks.errors import RegrowError, UserError

MIGRATIONS = "server/database/_migrations/versions/sqlite"
"""Prefect's migrations, below its package."""
DUMP = Path(__file__).with_name("database.sql")
"""An empty database with all migrations of the Prefect in requirements.lock, as SQL. Written by
`make dumps`."""
TICK = 0.01
"""Seconds between two checks for what another process is about to do."""
_LOOK_SECONDS = 0.5
"""Seconds to wait for the station's lock, which a process that checks holds for an instant."""


def use(home: Path) -> IO[str]:
    """Take the users' lock: the server does not end while it is open. Raises as `start`."""
    return _briefly_held(home / "users.lock", shared=True)


def start(home: Path) -> IO[str]:
    """Take the starters' lock. Raises RegrowError if another process does not release it."""
    return _briefly_held(home / "start.lock")


def lock_station(home: Path, host: str | None = None) -> IO[str]:
    """Take the station's lock: while it is open the server of `home` handles schedules. Raises
    UserError if a station has it.

    `host`: where the server listens in addition to the loopback, None: nowhere.
    """
    file = locks.acquire(home / "stays.lock", wait=_LOOK_SECONDS)
    if file is None:
        raise UserError(
            f"a station has the Prefect server of {home} already; end that first with `regrow down`"
        )
    private_files.replace(home / "host", host or "")
    return file


def has_station(home: Path) -> bool:
    """Return whether a station has the server of `home`."""
    return locks.is_held(home / "stays.lock")


def host(home: Path) -> str | None:
    """Return where a station has the server listen beyond the loopback; None: nowhere."""
    try:
        return (has_station(home) and (home / "host").read_text()) or None
    except FileNotFoundError:
        return None


def auth(home: Path) -> str:
    """Return USER:PASSWORD of the server of `home`, creating a password if there is none."""
    return passwords.make(home.parent).prefect_auth


def _briefly_held(path: Path, *, shared: bool = False) -> IO[str]:
    file = locks.acquire(path, shared=shared, wait=15.0)
    if file is None:
        raise RegrowError(f"{path} is locked by another process that does not let go")
    return file


def is_leaving(home: Path, gone: Callable[[], bool]) -> bool:
    """Return whether the server is ending: it has locked the users' lock, or is gone. It needs a
    moment for that, so this checks for 0.2 s.
    """
    users = home / "users.lock"
    return until(lambda: gone() or locks.is_held(users), seconds=0.2, tick=TICK)


def read_record(home: Path) -> dict[str, Any]:
    """Return the last server's record (pid, port, api_url); empty if there was none."""
    return private_files.read_record(home / "server.json")
