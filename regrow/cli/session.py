"""One session of an experiment in this terminal, for `run` and `resume`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

from regrow.cli import exit_codes
from regrow.infra.log.reading import replay
from regrow.infra.machine.streams import to_nowhere
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.search.spec import Spec
from regrow.show.live.terminal import tell
from regrow.tasks.process.interrupted import check

LAST_SECONDS = 10.0
"""How long an interrupted command may take to end after its last output."""


def run_session(
    places: Places,
    name: str,
    *,
    spec: Spec | None,
    quiet: bool = False,
    as_json: bool,
    prefect_port: int | None = None,
    trials: int | None = None,
    retry_failed: bool = False,
) -> NoReturn:
    """Run the experiment with the live view or its events, print its state at the end, and exit
    with the matching code.

    `spec` None: the specification in the log. `trials`: new total number of trials; None:
    unchanged.
    """
    from regrow.show.live import Live
    from regrow.show.live.output import Terminal, only_events
    from regrow.show.live.text import ending

    with only_events() if as_json else nullcontext() as events:
        console = Terminal(stderr=as_json)
        store = places.store(name)
        live = Live(console, quiet=quiet, events=events, notes=lambda: notes.read(store))
        there = None if prefect_port is not None else station_of(places, live.announce)
        given: dict[str, Any] = {
            "name": name,
            "spec": spec,
            "places": places,
            "trials": trials,
            "retry_failed": retry_failed,
            "announce": live.announce,
        }
        try:
            check()
            if there is None or not there(viewer=live.viewer, **given):
                from regrow.flows.launch import launch
                from regrow.flows.session import Session

                launch(
                    Session(watch=live.watch, prefect_port=prefect_port, warn=live.warn, **given)
                )
        except KeyboardInterrupt:  # or SIGTERM; Typer would exit with 130 without a message
            exit_codes.deaf()
            console.print("interrupted before the experiment began; nothing is lost")
            sys.stdout.flush()
            # Do not wait for library threads that still try to reach servers that have ended: waits
            # of 40 s were seen.
            end = threading.Timer(LAST_SECONDS, os._exit, [exit_codes.ExitCode.INTERRUPTED])
            end.daemon = True
            end.start()
            sys.exit(exit_codes.ExitCode.INTERRUPTED)
        exit_codes.deaf()  # the exit code no longer changes
        live.finish(store)
        history = replay(store, name)
        if not (as_json and quiet):
            for line in ending(history, places):
                console.print(line, soft_wrap=True)
    if console.lost:
        to_nowhere(console.file)  # else its buffer is written once more at exit, which then fails
        with suppress(OSError):
            tell(
                f"not all could be printed ({console.lost}); `{places.command('show', name)}` tells"
                " how it stands",
                error=True,
            )
    sys.exit(exit_codes.of_experiment(history))


def station_of(places: Places, announce: Callable[[str], None]) -> Callable[..., bool] | None:
    """Return what runs a session on the station of the state root; None if none can."""
    from regrow.infra.state import station_record as record

    station = record.find(places)
    if station is None:
        return None
    if (other := station.unlike(os.environ)) is not None:
        announce(
            f"{other} names another server than the station's; this session runs without the"
            " station"
        )
        return None
    if not station.same_environment:
        announce(
            f"the station runs in another Python environment, {station.prefix}; this session runs"
            " without it"
        )
        return None
    from regrow.apps.station.client import run_there

    return partial(run_there, station)
