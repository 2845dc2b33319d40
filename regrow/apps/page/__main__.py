"""`python -m regrow.apps.page`: serves the page of a state root until SIGTERM.

The addresses of other pages are passed in the environment: REGROW_PAGE_PREFECT, REGROW_PAGE_MLFLOW.
The password is that of the state root.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from regrow.apps.page.app import app
from regrow.apps.page.links import Links
from regrow.apps.station.state import Serving, serving
from regrow.apps.station.triggers import aside
from regrow.apps.station.triggers.hooks import router
from regrow.infra.machine import addresses
from regrow.infra.machine.http_server import Server
from regrow.infra.state import passwords
from regrow.infra.state import station_record as record
from regrow.infra.state.passwords import Passwords
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.infra.prefect.deployments import Scheduled

GRACE_SECONDS = 1
"""Time for pending requests when it is asked to end."""


def main(arguments: list[str] | None = None) -> None:
    """Serve on an inherited socket, or on a port of the loopback (0: any free one, printed)."""
    parser = argparse.ArgumentParser(
        prog="python -m regrow.apps.page", description="The page of a state root."
    )
    parser.add_argument("--state", required=True, help="the state root")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--socket", type=int, metavar="FD", help="a descriptor of a listening socket"
    )
    where.add_argument("--port", type=int, metavar="N", help="a port of the loopback")
    parser.add_argument("--host", help="with --port: an address beside the loopback")
    asked = parser.parse_args(arguments)
    try:
        places = Places.at(asked.state)
        links = Links(
            prefect=os.environ.get("REGROW_PAGE_PREFECT") or None,
            mlflow=os.environ.get("REGROW_PAGE_MLFLOW") or None,
            scheduled=partial(_scheduled, places) if os.environ.get("PREFECT_API_URL") else None,
            served=partial(_served, places),
            aside=lambda: list(aside.lines(places)),
        )
        known = passwords.make(places.services)
        made = app(
            places,
            links,
            known,
            hosts=addresses.known_as(asked.host),
            origins=addresses.also_named(),
        )
        made.include_router(router(places))
        listening = _listening(asked.socket, asked.port, asked.host, known)
    except UserError as error:
        sys.exit(f"regrow: {error}")
    Server(made, grace=GRACE_SECONDS).run(sockets=listening)
    sys.stdout.flush()
    os._exit(0)  # a thread that still reads a long log has nothing to finish


def _scheduled(places: Places) -> Sequence[Scheduled]:
    """Return the schedules of this process's Prefect server."""
    from prefect import get_client

    from regrow.infra.prefect.deployments import listed

    with get_client(sync_client=True) as client:
        return listed(client, places.root)


def _served(places: Places) -> Sequence[Serving]:
    """Return what the station of the state root serves; empty without a station."""
    station = record.find(places)
    return () if station is None else serving(station, places)


def _listening(
    descriptor: int | None, port: int | None, host: str | None, known: Passwords
) -> list[socket.socket]:
    if descriptor is not None:
        try:
            return [socket.socket(fileno=descriptor)]
        except OSError as error:
            raise UserError(f"--socket: {descriptor} is no socket ({error.strerror})") from None
    try:
        made = addresses.listen(host, port or 0)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port: {port} cannot be used ({error})") from None
    sys.stdout.write(f"{known.shown('page', f'http://127.0.0.1:{made[0].getsockname()[1]}')}\n")
    sys.stdout.flush()
    return made


if __name__ == "__main__":
    main()
