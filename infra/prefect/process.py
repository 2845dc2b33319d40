"""The process of the embedded Prefect server: `python -m regrow.infra.prefect.process`.

It serves on an inherited socket, and lives exactly as long as a process holds the shared lock on
its users file. No other module imports this one: `server.py` starts it and sets its whole
environment.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import os
import resource
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regrow.infra.machine import addresses
from regrow.infra.machine.sqlite import create_database, is_current, load_dump
from regrow.infra.prefect import home as homes
from regrow.infra.prefect.home import DUMP, MIGRATIONS
from regrow.infra.state import passwords
from regrow.tasks.process import background, temporary

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

MESSAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of a WebSocket message; Prefect's events have 1.5 MB at most."""
HARD_EXIT_SECONDS = 1.5
"""Seconds that a clean shutdown may take before the process ends anyway."""


class ServerUsers:
    """Ends this process as soon as no other process uses the server.

    A thread blocks in flock() for the exclusive lock. The kernel grants it once the last user has
    closed the file, also if that user was killed: no polling, no heartbeat, and no remains.
    """

    def __init__(self, users: Path) -> None:
        # Held until the very end of the process and released after the server's own lock (the
        # kernel closes files in the order of their numbers): a user that arrives while this server
        # ends must wait for it, not attach to it.
        low = os.open(users, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        high = 500 if most == resource.RLIM_INFINITY else min(500, most // 2)
        self._users = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, high)
        os.close(low)
        self._server: uvicorn.Server | None = None
        background.start(self._end_when_unused, name="server-users")

    def serve(self, server: uvicorn.Server) -> None:
        """End by a clean shutdown of `server` from now on."""
        self._server = server

    def _end_when_unused(self) -> None:
        fcntl.flock(self._users, fcntl.LOCK_EX)
        if self._server is None:  # still starting, so nothing is in progress
            os._exit(0)
        self._server.should_exit = True
        hard_exit = threading.Timer(HARD_EXIT_SECONDS, os._exit, [0])
        hard_exit.daemon = True
        hard_exit.start()


def _guarded(app: ASGIApp, home: Path) -> ASGIApp:
    """Wrap the application so that only clients with the state root's password can use it."""
    from regrow.infra.machine.guard import EntryGuard, PasswordEntry, Rules

    known = passwords.make(home.parent)
    entry = PasswordEntry(
        "prefect", passwords.USER, known.prefect, known.cookies, passwords.used_links(home.parent)
    )
    rules = Rules(
        hosts=addresses.known_as(homes.host(home)),
        origins=addresses.also_named(),
        open=frozenset({"/api/health", "/api/ready"}),
    )
    return EntryGuard(app, entry=entry, rules=rules)


def main() -> None:
    """Serve until the last user is gone."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--home", type=Path, required=True)
    arguments.add_argument("--users", type=Path, required=True)
    arguments.add_argument(
        "--socket", type=int, required=True, nargs="+", help="inherited listening sockets"
    )
    options = arguments.parse_args()
    # The server ends with its last user, which sends data until the very end, also if all processes
    # get a signal to end.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    users = ServerUsers(options.users)
    # Set before Prefect is imported: Prefect runs code that it finds in its home, and files beside
    # its database may come from a stranger.
    home = temporary.process_temp_dir() / "prefect"
    home.mkdir(mode=0o700)
    os.environ["PREFECT_HOME"] = str(home)

    # Importing the server creates millions of permanent objects: garbage collection meanwhile takes
    # 0.65 s of 2.9 s.
    gc.disable()
    database = options.home / "prefect.db"
    create_database(database, lambda new: load_dump(new, DUMP, "prefect", MIGRATIONS))
    # If nothing is to be done, Alembic would load all migrations to find that: 0.6 s of CPU.
    if is_current(database, "prefect", MIGRATIONS):
        os.environ["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "false"
    from regrow.infra.machine import http_server
    from regrow.infra.prefect.private import server_app

    app = _guarded(server_app(), options.home)
    gc.freeze()
    gc.enable()

    class Server(http_server.Server):
        """Leaves signals to the handlers set above."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    connection = http_server.TransferConnection
    server = Server(
        app,
        grace=1,
        connection=connection,
        drains=False,
        ws="auto",
        ws_max_size=MESSAGE_BYTES,
        lifespan="on",
    )
    users.serve(server)
    server.run(sockets=[socket.socket(fileno=number) for number in options.socket])
    shutil.rmtree(home.parent, ignore_errors=True)
    # Everything is written and closed. Finalizing the interpreter would take 0.5 s, for which the
    # last user waits.
    os._exit(0)


if __name__ == "__main__":
    main()
