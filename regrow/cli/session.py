"""One session of an experiment in this terminal: what `run` and `resume` do once they know which experiment it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NoReturn

from regrow.cli import exit_codes
from regrow.infra.log.reading import replay
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.search.spec import Spec


def run_session(
    name: str, *, spec: Spec | None, places: Places, trials: int | None, quiet: bool, as_json: bool, prefect_port: int | None,
    retry_failed: bool = False,
) -> NoReturn:
    """Runs the experiment with the live view or its events, prints how it stands at the end, and exits with the code for that.

    `spec` None: the specification that is in the log. `trials` None: the total number of trials stays.
    """
    from regrow.live import Live
    from regrow.live.output import Terminal, only_events
    from regrow.live.text import ending

    with only_events() if as_json else nullcontext() as events:
        console = Terminal(highlight=False, stderr=as_json)
        store = places.store(name)
        live = Live(console, quiet=quiet, events=events, notes=lambda: notes.read(store))
        there = None if prefect_port is not None else _station(places, live.announce)
        try:
            if there is None or not there(
                name, spec=spec, places=places, trials=trials, retry_failed=retry_failed, viewer=live.viewer,
                announce=live.announce,
            ):
                from regrow.launch import launch

                launch(
                    name, spec=spec, places=places, trials=trials, retry_failed=retry_failed, watch=live.watch,
                    prefect_port=prefect_port, announce=live.announce,
                )
        except KeyboardInterrupt:  # or SIGTERM; Typer would end with 130, without a word
            console.print("interrupted before the experiment began; nothing is lost", markup=False)
            sys.exit(exit_codes.ExitCode.INTERRUPTED)
        live.finish(store)
        history = replay(store, name)
        if not (as_json and quiet):
            for line in ending(history, places):
                console.print(line, markup=False, soft_wrap=True)
    sys.exit(exit_codes.of_experiment(history))


def _station(places: Places, announce: Callable[[str], None]) -> Callable[..., bool] | None:
    """How a session is run by the station of the state root; None where there is none that could."""
    from regrow.station import record

    station = record.find(places)
    if station is None:
        return None
    if (other := station.unlike(os.environ)) is not None:
        announce(f"{other} names another server than the station's; this session runs without the station")
        return None
    if not station.same_environment:
        announce(f"the station runs in another Python environment, {station.prefix}; this session runs without it")
        return None
    from regrow.station.client import run_there

    return partial(run_there, station)
