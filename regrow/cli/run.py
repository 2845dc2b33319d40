"""`run`, `resume` and `stop`: the commands that change an experiment."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from regrow.cli.options import EventsOption, NameArgument, PortOption, QuietOption, StateOption
from regrow.infra import notes
from regrow.infra.experiments import request_stop, withdraw_stop
from regrow.infra.places import Places, replay, survey
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Store

EXIT = {"finished": 0, "failed": 1, "interrupted": 3, "stopped": 3}


def run(
    file: Annotated[Path, typer.Argument(help="The experiment's YAML file", readable=False)],
    name: Annotated[str | None, typer.Option(help="Another name than the file's")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Another total number of trials than the file's")] = None,
    state: StateOption = None,
    quiet: QuietOption = False,
    as_json: EventsOption = False,
    prefect_port: PortOption = None,
) -> None:
    """Run the experiment that FILE describes, or go on with it if it is there already."""
    from regrow.infra.specfile import located, read_spec

    spec = read_spec(file)
    try:
        if name is not None:
            spec = type(spec).parse({**spec.to_json(), "name": name})
        _sitting(spec.name, spec, Places.at(state or spec.state), trials, quiet, as_json, prefect_port)
    except SpecError as error:
        raise error if error.where else located(error, file)  # noqa: B904 - the same error, with its place


def resume(
    name: NameArgument,
    trials: Annotated[int | None, typer.Option(min=1, help="Raise the total number of trials to this")] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try failed trials again, from their last checkpoints")
    ] = False,
    state: StateOption = None,
    quiet: QuietOption = False,
    as_json: EventsOption = False,
    prefect_port: PortOption = None,
) -> None:
    """Go on with an experiment that was interrupted, stopped or lost its driver."""
    _sitting(name, None, Places.at(state), trials, quiet, as_json, prefect_port, retry_failed=retry_failed)


def stop(
    name: NameArgument,
    state: StateOption = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait until it has ended")] = 60.0,
) -> None:
    """Stop a running experiment: attempts save a checkpoint and end; `resume` goes on with it."""
    places = Places.at(state)
    store = places.known(name)
    if not places.running(name):
        raise UserError(f"experiment {name!r} is not running; `regrow show {name}` says how it stands")
    request = request_stop(store)
    deadline = time.monotonic() + wait
    while places.running(name):
        if time.monotonic() > deadline:
            raise UserError(f"{name} was asked to stop but still runs after {wait:g} s; {_driver(store)}")
        time.sleep(0.2 if places.alive(name) else 2.0)  # from afar it costs a request
    withdraw_stop(store, request)  # its driver may have ended, or died, before it came to that
    print(f"{name} is stopped; `{places.command('resume', name)}` goes on")


def _driver(store: Store) -> str:
    """Who runs the experiment, and how to end that all the same."""
    opened = survey(store).opened
    if opened is None:
        return "it is about to begin, and will heed it then"
    host, process, _ = opened.driver.rsplit(":", 2)
    return (
        f"its driver is process {process} on {host}, which `kill -9 {process}` ends there in any case: "
        "what is in its log is safe, and `regrow resume` goes on"
    )


def _sitting(
    name: str, spec: Spec | None, places: Places, trials: int | None, quiet: bool, as_json: bool, port: int | None, *,
    retry_failed: bool = False,
) -> None:
    from regrow.cli.live import Live
    from regrow.cli.live.output import Terminal, only_events
    from regrow.cli.text import ending
    from regrow.launch import launch

    with only_events() if as_json else nullcontext() as events:
        console = Terminal(highlight=False, stderr=as_json)
        store = places.store(name)
        live = Live(console, quiet=quiet, events=events, notes=lambda: notes.read(store))
        try:
            launch(
                name, spec=spec, places=places, trials=trials, retry_failed=retry_failed, watch=live.watch, prefect_port=port,
                announce=live.announce,
            )
        except KeyboardInterrupt:  # or SIGTERM; Typer would end with 130, without a word
            console.print("interrupted before the experiment began; nothing is lost", markup=False)
            sys.exit(EXIT["interrupted"])
        live.finish(store)
        history = replay(store, name)
        if not (as_json and quiet):
            for line in ending(history, places):
                console.print(line, markup=False, soft_wrap=True)
    sys.exit(EXIT[history.closed.status if history.closed else "interrupted"])
