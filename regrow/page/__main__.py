"""`python -m regrow.page`: serves the page of a state root until SIGTERM.

Addresses of other pages and the password come by the environment, which other users of the machine cannot read:
REGROW_PAGE_PREFECT, REGROW_PAGE_MLFLOW, REGROW_PAGE_PASSWORD, and REGROW_PAGE_HOSTS, names (with commas between) under which it
is asked beside those of the loopback.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from dataclasses import replace
from functools import partial

import uvicorn

from regrow.infra.machine import addresses
from regrow.infra.state.places import Places
from regrow.page.app import app
from regrow.page.links import Links, Scheduled, Served
from regrow.station import record
from regrow.station.state import serving
from regrow.station.triggers.hooks import router
from regrow.tasks.errors import UserError

GRACE_SECONDS = 1
"""For answers that are under way when it is to end."""


def main(arguments: list[str] | None = None) -> None:
    """Serves, on a socket that is listening already, or on a port of the loopback (0: any free one, which is printed)."""
    parser = argparse.ArgumentParser(prog="python -m regrow.page", description="The page of a state root.")
    parser.add_argument("--state", required=True, help="the state root")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", type=int, metavar="FD", help="a descriptor of a listening socket")
    where.add_argument("--port", type=int, metavar="N", help="a port of the loopback")
    parser.add_argument("--host", help="with --port: an address beside the loopback; only with a password")
    asked = parser.parse_args(arguments)
    password = os.environ.pop("REGROW_PAGE_PASSWORD", None) or None
    links = Links(prefect=os.environ.get("REGROW_PAGE_PREFECT") or None, mlflow=os.environ.get("REGROW_PAGE_MLFLOW") or None)
    hosts = [host.strip() for host in os.environ.get("REGROW_PAGE_HOSTS", "").split(",") if host.strip()]
    try:
        places = Places.at(asked.state)
        scheduled = partial(_scheduled, places) if os.environ.get("PREFECT_API_URL") else None
        made = app(places, replace(links, scheduled=scheduled, served=partial(_served, places)), password, hosts=hosts)
        made.include_router(router(places))
        if asked.host and not password:
            raise UserError("--host: REGROW_PAGE_PASSWORD is not set; nobody else may see the page without one")
        listening = _listening(asked.socket, asked.port, asked.host)
    except UserError as error:
        sys.exit(f"regrow: {error}")
    config = uvicorn.Config(
        made, log_level="warning", access_log=False, server_header=False, proxy_headers=False, lifespan="off",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=listening)
    sys.stdout.flush()
    os._exit(0)  # a thread that still reads a long log has nothing to finish


def _scheduled(places: Places) -> list[Scheduled]:
    """The schedules of the server that this process was started with, the next one first."""
    from prefect import get_client

    from regrow.infra.prefect.deployments import listed

    with get_client(sync_client=True) as client:
        found = listed(client, places.root)
    shown = [
        Scheduled(
            name=one.name, when=one.words, next=one.coming[0].timestamp() if one.coming and not one.paused else None,
            last=one.runs[0].state if one.runs else "",
        )
        for one in found
    ]
    return sorted(shown, key=lambda one: (one.next is None, one.next or 0.0))


def _served(places: Places) -> list[Served]:
    """What the station of the state root serves, none where there is no station."""
    station = record.find(places)
    return [
        Served(
            name=one.name, url=one.said.url, answers="" if one.said.main is None else one.said.main.text,
            refused=one.said.refused, trouble=one.said.trouble,
        )
        for one in (() if station is None else serving(station, places))
    ]


def _listening(descriptor: int | None, port: int | None, host: str | None) -> list[socket.socket]:
    if descriptor is not None:
        try:
            return [socket.socket(fileno=descriptor)]
        except OSError as error:
            raise UserError(f"--socket: {descriptor} is no socket ({error.strerror})") from None
    try:
        made = addresses.listen(host, port or 0)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port: {port} cannot be had ({error})") from None
    sys.stdout.write(f"http://127.0.0.1:{made[0].getsockname()[1]}\n")
    sys.stdout.flush()
    return made


if __name__ == "__main__":
    main()
