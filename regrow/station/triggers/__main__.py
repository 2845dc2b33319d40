"""The process: `python -m regrow.station.triggers --state ROOT`. It ends on SIGTERM."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading

from regrow.infra.machine import locks
from regrow.infra.state.places import Places
from regrow.station.triggers.inbox import folder_of
from regrow.tasks.errors import RegrowError, UserError

BEFORE_SECONDS = 10.0
"""How long a watcher before this one, which is about to end, is waited for."""


def main(arguments: list[str] | None = None) -> int:
    """Watches until it is told to end; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m regrow.station.triggers", description=__doc__)
    parser.add_argument("--state", required=True, help="the state root")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        watch(Places.at(parser.parse_args(arguments).state), stop)
    except RegrowError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, UserError) else 1
    return 0


def watch(places: Places, stop: threading.Event) -> None:
    """Watches a state root's triggers. Raises UserError where nobody says which server, or another watcher is at it."""
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("PREFECT_API_URL is not set; `regrow up` starts this process with it")
    from prefect import get_client

    from regrow.station.triggers.journal import Journal
    from regrow.station.triggers.loop import Loop

    folder = folder_of(places)
    folder.mkdir(parents=True, exist_ok=True)
    lock = locks.take(folder / "lock", wait=BEFORE_SECONDS)
    if lock is None:
        raise UserError(f"the triggers of {places.root} are watched by another process already")
    with lock, get_client(sync_client=True) as client:
        journal = Journal(folder / "journal.jsonl")
        try:
            Loop(places, client, journal, stop).run()
        finally:
            journal.close()


if __name__ == "__main__":
    sys.exit(main())
