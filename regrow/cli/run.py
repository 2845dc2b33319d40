"""`run`, `resume` and `stop`: the commands that change an experiment."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regrow.cli.options import EventsOption, NameArgument, PortOption, QuietOption, StateOption
from regrow.infra.experiments import request_stop
from regrow.infra.places import Places, replay
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

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
    from regrow.infra.specfile import read_spec

    spec = read_spec(file)
    try:
        if name is not None:
            spec = type(spec).parse({**spec.to_json(), "name": name})
        _sitting(spec.name, spec, Places.at(state or spec.state), trials, quiet, as_json, prefect_port)
    except SpecError as error:
        raise error if error.where else error.at(str(file))  # noqa: B904 - the same error, with its place


def resume(
    name: NameArgument,
    trials: Annotated[int | None, typer.Option(min=1, help="Raise the total number of trials to this")] = None,
    state: StateOption = None,
    quiet: QuietOption = False,
    as_json: EventsOption = False,
    prefect_port: PortOption = None,
) -> None:
    """Go on with an experiment that was interrupted, stopped or lost its driver."""
    _sitting(name, None, Places.at(state), trials, quiet, as_json, prefect_port)


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
    request_stop(store)
    deadline = time.monotonic() + wait
    while places.running(name):
        if time.monotonic() > deadline:
            raise UserError(f"{name} was asked to stop but still runs after {wait:g} s; `regrow show {name}` follows it")
        time.sleep(0.2 if places.alive(name) else 2.0)  # from afar it costs a request
    print(f"{name} is stopped; `{places.command('resume', name)}` goes on")


def _sitting(
    name: str, spec: Spec | None, places: Places, trials: int | None, quiet: bool, as_json: bool, port: int | None
) -> None:
    from regrow.cli.live import Live
    from regrow.cli.live.output import only_events
    from regrow.cli.text import ending
    from regrow.launch import launch

    with only_events() if as_json else nullcontext() as events:
        console = Console(highlight=False, stderr=as_json)
        live = Live(console, quiet=quiet, events=events)
        launch(
            name, spec=spec, places=places, trials=trials, watch=live.watch, prefect_port=port, announce=live.announce,
        )
        store = places.store(name)
        live.finish(store)
        history = replay(store).history
        if not (as_json and quiet):
            for line in ending(history, places):
                console.print(line, markup=False, soft_wrap=True)
    sys.exit(EXIT[history.closed.status] if history.closed else 1)
