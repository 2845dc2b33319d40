"""The commands that only look: `ls`, `show`, `trials`, `best`, `verify`, `schema`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from regrow.cli import text
from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra import views
from regrow.infra.log import CorruptLog
from regrow.infra.places import Places, read_events, replay
from regrow.search.history import History
from regrow.tasks.errors import UserError


def ls(state: StateOption = None, as_json: JsonOption = False) -> None:
    """List the experiments of the state root."""
    places = Places.at(state)
    found: list[tuple[str, History]] = []
    damaged: CorruptLog | None = None
    for name in places.experiments():
        try:
            found.append((name, _history(places, name)))
        except CorruptLog as error:
            damaged = error
    if as_json:
        for name, history in found:
            view = views.show(history, alive=places.running(name), now=time.time())
            del view["trials"]
            print(json.dumps(view))
    elif found:
        plain_console().print(text.experiments([(history, places.running(name)) for name, history in found]))
    elif damaged is None:
        print(f"no experiments in {places.root}")
    if damaged is not None:
        raise damaged


def show(name: NameArgument, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show how an experiment stands."""
    from regrow.cli.live.board import Board
    from regrow.cli.live.grid import signs_of
    from regrow.cli.live.sections import report

    places = Places.at(state)
    board = Board()
    for event in read_events(places.known(name)):
        board.apply(event)
    history, alive, now = board.history, places.running(name), time.time()
    if as_json:
        print(json.dumps(views.show(history, alive=alive, now=now)))
        return
    console = plain_console()
    for line in text.summary(history, places, alive=alive, now=now):
        console.print(line, markup=False, soft_wrap=True)
    for part in report(board, now, signs_of(console), console.width, alive=alive):
        console.print(Text("\n").join([Text(), *part]), soft_wrap=True)
    console.print()
    console.print(text.trials(history, console, most=20))


def trials(
    name: NameArgument,
    file: Annotated[
        Path | None,
        typer.Argument(help="File for --csv (default: standard output) or --parquet; replaced if there", show_default=False),
    ] = None,
    state: StateOption = None,
    history: Annotated[bool, typer.Option("--history", help="Every step of every trial instead of a line a trial")] = False,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV, safe to open in a spreadsheet")] = False,
    as_parquet: Annotated[bool, typer.Option("--parquet", help="A Parquet file")] = False,
) -> None:
    """List the trials of an experiment, best first; with --history every reported step."""
    if as_json + as_csv + as_parquet > 1:
        raise UserError("--json, --csv and --parquet exclude each other")
    if file is not None and not (as_csv or as_parquet):
        raise UserError(f"{file}: a file goes with --csv or --parquet")
    if as_parquet and file is None:
        raise UserError(f"--parquet: name a file: regrow trials {name} {name}.parquet --parquet")
    places = Places.at(state)
    found = _history(places, name)
    if as_csv or as_parquet:
        _table(found, places, file, history=history, parquet=as_parquet)
    elif history:
        if as_json:
            for point in views.points(found):
                print(json.dumps(point))
        else:
            plain_console().print(text.points(found))
    elif as_json:
        for trial in found.trials:
            print(json.dumps(views.trial_view(found, trial)))
    else:
        console = plain_console()
        console.print(text.trials(found, console))


def _table(found: History, places: Places, file: Path | None, *, history: bool, parquet: bool) -> None:
    from regrow.infra.exports import destination, files, frames

    if file is not None:
        destination.is_stream(file)  # what cannot be written is refused at once
    table = frames.steps(found) if history else frames.trials(found, places)
    if file is None:
        sys.stdout.buffer.write(files.csv_bytes(table))
        sys.stdout.buffer.flush()
        return
    destination.put(file, (files.parquet_bytes if parquet else files.csv_bytes)(table))
    destination.tell(file, f"{file}: {len(table[0].cells)} {'steps' if history else 'trials'}, {len(table)} columns")


def best(
    name: NameArgument,
    state: StateOption = None,
    as_json: JsonOption = False,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write its checkpoint's files into this new folder", show_default=False)
    ] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Print the schedule of configurations that led to it, to be replayed by one trial")
    ] = False,
) -> None:
    """Print the best configuration, ready to paste."""
    places = Places.at(state)
    history = _history(places, name)
    view = views.best(history)
    if save is not None:
        _save_checkpoint(places, name, view, save)
    if schedule and view is not None:
        view = views.schedule(history, view["trial"], view["step"])
    if as_json:
        print(json.dumps(view))
    elif schedule and view is not None:
        for key, written in view.items():
            print(f"{key}: {json.dumps(written)}")
    elif view is None:
        print(f"no trial of {name} has reported anything yet")
    else:
        for line in text.best(history, places):
            plain_console().print(line, markup=False, soft_wrap=True)


def _save_checkpoint(places: Places, name: str, view: dict[str, Any] | None, folder: Path) -> None:
    from regrow.result import save_checkpoint

    if view is None or view["checkpoint"] is None:
        raise UserError(f"--save: the best trial of {name!r} has no checkpoint; report with checkpoint=... in the trainable")
    if folder.exists():
        raise UserError(f"--save: {folder} exists already; name a folder that is to be made")
    save_checkpoint(places.known(name), view["checkpoint"], folder)


def verify(name: NameArgument, state: StateOption = None) -> None:
    """Recompute every decision of an experiment from its log."""
    from regrow.infra.experiments import make_importable
    from regrow.search.errors import SearchCodeError
    from regrow.search.events import Created, Opened, encode
    from regrow.search.history import specification
    from regrow.search.verify import verify as check
    from regrow.tasks.errors import UserCodeError
    from regrow.tasks.traces import user_trace

    events = read_events(Places.at(state).known(name))
    if events and isinstance(events[0], Created):
        last = next((event for event in reversed(events) if isinstance(event, Opened)), None)
        make_importable(specification(events[0], last))
    try:
        result = check(events)
    except SearchCodeError as error:
        raise UserCodeError(str(error), user_trace(error.__cause__ or error)) from None
    if result.difference is None:
        kinds = ", ".join(f"{n} {kind}" for kind, n in result.kinds.items())
        print(f"{name}: {result.events} events fold without a contradiction ({kinds})")
        print(f"{name}: {result.decisions} decisions recomputed, all as recorded")
        return
    wrong = result.difference
    print(f"{name}: event {wrong.position} differs: {wrong.why}")
    print(f"  found:    {encode(wrong.found).decode()}")
    print(f"  expected: {encode(wrong.expected).decode() if wrong.expected is not None else 'nothing'}")
    sys.exit(1)


def schema() -> None:
    """Print the JSON schema of the YAML file, for editors."""
    from regrow.search.spec import Spec

    print(json.dumps(Spec.model_json_schema(), indent=2))


def _history(places: Places, name: str) -> History:
    return replay(places.known(name)).history


def plain_console() -> Console:
    """A terminal as it is; a file or a pipe takes lines of any length."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=1000)
