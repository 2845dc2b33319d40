"""The process of the embedded Prefect server: `python -m regrow.infra.prefect.process`.

It serves on a socket that it inherits and lives exactly as long as somebody holds the shared lock on its
users file. Nothing here is imported by other modules: `prefect_server` starts it and sets its whole
environment.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import os
import resource
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regrow.infra.machine.sqlite import fill_from_template

if TYPE_CHECKING:
    import uvicorn

HARD_EXIT_SECONDS = 1.5
"""How long a clean shutdown may take before the process ends anyway."""


class Tenancy:
    """Ends this process as soon as no other process uses the server any more.

    A thread blocks in flock() for the exclusive lock. The kernel grants it once the last user has closed the
    file, also when that user was killed: no polling, no heartbeat, and nothing stays behind.
    """

    def __init__(self, users: Path) -> None:
        # Held to the very end of the process and released after the server's own lock (the kernel closes files in the
        # order of their numbers): a user who comes while this server leaves must wait for it, not attach to it.
        low = os.open(users, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        high = 500 if most == resource.RLIM_INFINITY else min(500, most // 2)
        self._users = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, high)
        os.close(low)
        self._server: uvicorn.Server | None = None
        threading.Thread(target=self._end_with_the_last_user, name="tenancy", daemon=True).start()

    def serve(self, server: uvicorn.Server) -> None:
        """From now on end by a clean shutdown of `server`."""
        self._server = server

    def _end_with_the_last_user(self) -> None:
        fcntl.flock(self._users, fcntl.LOCK_EX)
        if self._server is None:  # still starting: there is nothing to finish
            os._exit(0)
        self._server.should_exit = True
        hard_exit = threading.Timer(HARD_EXIT_SECONDS, os._exit, [0])
        hard_exit.daemon = True
        hard_exit.start()


def create_server_database(database: Path, template: Path) -> None:
    """Create the server's database unless it exists: a copy of `template`, which is made on the first use.

    Replaying Prefect's migrations takes 6.5 s, copying their result 5 ms. The template is what these very
    migrations left, stamped with their revision.
    """
    if not database.exists():
        from regrow.infra.prefect.private import make_database

        fill_from_template(database, template, lambda: asyncio.run(make_database()))


def is_current(database: Path, template: Path) -> bool:
    """Whether `database` stands at the revision at which the migrations of the installed Prefect end.

    The template, which is named after Prefect's version, tells that one; where there is none, nobody knows.
    """
    try:
        last = revision(template)
        return last is not None and revision(database) == last
    except (OSError, sqlite3.Error):
        return False


def revision(database: Path) -> str | None:
    """The migration that a database was stamped with; None for one without. Raises sqlite3.Error where there is no database."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute("select version_num from alembic_version").fetchone()
    return None if found is None else str(found[0])


def main() -> None:
    """Serve until the last user is gone."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--home", type=Path, required=True)
    arguments.add_argument("--users", type=Path, required=True)
    arguments.add_argument("--template", type=Path, required=True)
    arguments.add_argument("--socket", type=int, required=True, nargs="+", help="inherited listening sockets")
    options = arguments.parse_args()
    # It ends with its last user, who has things to tell it to the very end, also where everybody is told to end.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tenancy = Tenancy(options.users)

    # Importing the server makes millions of objects that stay: collecting garbage meanwhile takes 0.65 s of
    # 2.9 s.
    gc.disable()
    database = options.home / "prefect.db"
    create_server_database(database, options.template)
    if is_current(database, options.template):
        # Asking Alembic whether there is anything to migrate loads every migration that there ever was: 0.6 s of CPU.
        os.environ["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "false"
    import uvicorn

    from regrow.infra.prefect.private import server_app

    app = server_app()
    gc.freeze()
    gc.enable()
    class Server(uvicorn.Server):
        """Leaves signals alone; see above."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = Server(
        uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=1)
    )
    tenancy.serve(server)
    server.run(sockets=[socket.socket(fileno=number) for number in options.socket])
    os._exit(0)  # all is written and closed; taking the interpreter apart takes 0.5 s, for which the last user waits


if __name__ == "__main__":
    main()
