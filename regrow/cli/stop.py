"""`stop`: stops an experiment that runs in another terminal, or on another machine."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from regrow.cli import options
from regrow.infra.log.reading import survey
from regrow.infra.state.agents import living
from regrow.infra.state.driver_lock import runs, runs_here
from regrow.infra.state.experiments import request_stop, withdraw_stop
from regrow.infra.state.places import Places
from regrow.search.events import Closed
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store


def stop(
    name: options.Name,
    state: options.State = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait until it has ended")] = 60.0,
) -> None:
    """Stop a running experiment: attempts save a checkpoint and end; `resume` continues it."""
    places = Places.at(state)
    store = places.known(name)
    # With agents the experiment continues also while one leader follows another.
    led = bool(living(store))
    if not (led or runs(places, name)):
        look = places.command("show", name)
        raise UserError(f"experiment {name!r} is not running; `{look}` shows its state")
    request = request_stop(store)
    deadline = time.monotonic() + wait
    while runs(places, name) or (led and not _is_over(store)):
        if not time.monotonic() < deadline:  # also for NaN
            raise UserError(
                f"{name} was asked to stop but still runs after {wait:g} s; {_driver(store)}"
            )
        time.sleep(0.2 if runs_here(places, name) else 2.0)  # on another machine it costs a request
    withdraw_stop(store, request)  # its driver may have ended, or died, before it read the request
    again = places.command("join", name, "--resume") if led else places.command("resume", name)
    echo(f"{name} is stopped; `{again}` continues")


def _is_over(store: Store) -> bool:
    """Return whether it has ended so that its agents do not continue it."""
    last = survey(store).last
    return isinstance(last, Closed) and last.status != "interrupted"


def _driver(store: Store) -> str:
    opened = survey(store).opened
    if opened is None:
        return "it is about to begin, and will end then"
    host, process, _ = opened.driver.rsplit(":", 2)
    return (
        f"its driver is process {process} on {host}, which `kill -9 {process}` ends there in any"
        " case: what is in its log is safe, and `regrow resume` continues"
    )
