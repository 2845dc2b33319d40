"""The process of the watcher: `python -m regrow.apps.station.triggers --state ROOT`. It ends on
SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from contextlib import closing

from regrow.apps.station.triggers.inbox import folder_of
from regrow.infra.machine import locks, private_files
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError, UserError

BEFORE_SECONDS = 10.0
"""How long to wait for a previous watcher that is about to end."""


def main(arguments: list[str] | None = None) -> int:
    """Watch until a signal ends it; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m regrow.apps.station.triggers", description=__doc__
    )
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
    """Watch a state root's triggers. Raises UserError without a server, or if another does."""
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("PREFECT_API_URL is not set; `regrow up` starts this process with it")
    from prefect import get_client

    from regrow.apps.station.triggers.journal import Journal
    from regrow.apps.station.triggers.loop import TriggerLoop

    folder = private_files.folder(folder_of(places))
    lock = locks.acquire(folder / "lock", wait=BEFORE_SECONDS)
    if lock is None:
        raise UserError(f"the triggers of {places.root} are watched by another process already")
    journal_at = folder / "journal.jsonl"
    with lock, get_client(sync_client=True) as client, closing(Journal(journal_at)) as journal:
        TriggerLoop(places, client, journal, stop).run()


if __name__ == "__main__":
    sys.exit(main())
