"""The commands that only look: `ls`, `show`, `trials`, `best`, `verify`, `schema`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from regrow.cli import text
from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra import notes, views
from regrow.infra.log import CorruptLog, Log
from regrow.infra.places import HalfRemoved, Places, replay, replayed, stream_events, survey
from regrow.infra.rows import Rows
from regrow.search.history import History
from regrow.tasks.errors import UserError


class Order(StrEnum):
    """By what `ls` sorts; the newest, the largest and the most first."""

    NAME = "name"
    AGE = "age"
    SIZE = "size"
    STATUS = "status"
    TRIALS = "trials"


def ls(
    state: StateOption = None,
    sort: Annotated[Order, typer.Option("--sort", help="By what; the newest, largest and most first")] = Order.NAME,
    tag: Annotated[str | None, typer.Option("--tag", help="Only those that have this tag", show_default=False)] = None,
    size: Annotated[
        bool, typer.Option("--size", help="How large each is also in a bucket, by a request for every 1,000 of its objects")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the experiments of the state root: how each stands, its best, when it was last heard of, its size, tags, last note."""
    places = Places.at(state)
    if sort is Order.SIZE and places.remote and not size:
        raise UserError(f"--sort size: what is in {places.root} is only measured with --size")
    found: list[text.Listed] = []
    damaged: list[CorruptLog] = []
    for name in places.experiments():
        try:
            one = _listed(places, name, size=size or not places.remote)
        except CorruptLog as error:
            damaged.append(error)
            one = text.Listed(name=name, status="damaged")
        if tag is None or tag in one.notes.tags:
            found.append(one)
    found.sort(key=_ORDERS[sort])
    now = time.time()
    if as_json:
        for one in found:
            if one.history is not None:
                view = views.show(one.history, alive=one.status == "running", now=now, notes=one.notes)
                del view["trials"]
                print(json.dumps({**view, "name": one.name, "last_t": round(one.history.t_last, 3), "bytes": one.size}))
    elif found:
        plain_console().print(text.experiments(found, now))
        for one in found:
            if one.history is not None and one.history.name_in_log != one.name:
                print(f"{one.name}: renamed, its log says {one.history.name_in_log}; every command takes {one.name}")
    elif not damaged:
        print(f"no experiments in {places.root}{f' have the tag {tag}' if tag is not None else ''}")
    for broken in damaged[:-1]:
        print(f"regrow: {broken}", file=sys.stderr)
    if damaged:
        raise damaged[-1]


def _listed(places: Places, name: str, *, size: bool) -> text.Listed:
    try:
        store = places.known(name)
        history = replay(store, name)
    except HalfRemoved:
        return text.Listed(name=name, status="half-removed", size=places.size(name)[1] if size else None)
    return text.Listed(
        name=name, status=views.status(history, alive=places.running(name)), history=history, notes=notes.read(store),
        size=places.size(name)[1] if size else None,
    )


_ORDERS: dict[Order, Callable[[text.Listed], Any]] = {
    Order.NAME: lambda one: one.name,
    Order.AGE: lambda one: -one.history.t_last if one.history is not None else 0.0,
    Order.SIZE: lambda one: -(one.size or 0),
    Order.STATUS: lambda one: (one.status, one.name),
    Order.TRIALS: lambda one: -len(one.history.trials) if one.history is not None else 0,
}


def show(name: NameArgument, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show how an experiment stands."""
    from regrow.cli.live.board import Board
    from regrow.cli.live.grid import signs_of
    from regrow.cli.live.sections import report

    places = Places.at(state)
    store, board = places.known(name), Board(name)
    for event in stream_events(store):
        board.apply(event)
    history, alive, now = board.history, places.running(name), time.time()
    noted = notes.read(store)
    if as_json:
        print(json.dumps(views.show(history, alive=alive, now=now, notes=noted)))
        return
    console = plain_console()
    for line in (*text.summary(history, places, alive=alive, now=now), *text.noted(noted)):
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
    rows = replayed(places.known(name), name)
    found = rows.history
    if as_csv or as_parquet:
        _table(rows, places, file, history=history, parquet=as_parquet)
    elif history:
        with rows.sorted() as steps:
            if as_json:
                for point in views.points(steps):
                    print(json.dumps(point))
            else:
                for table in text.points(steps):
                    plain_console().print(table)
    elif as_json:
        for trial in found.trials:
            print(json.dumps(views.trial_view(found, trial)))
    else:
        console = plain_console()
        console.print(text.trials(found, console))


def _table(rows: Rows, places: Places, file: Path | None, *, history: bool, parquet: bool) -> None:
    from regrow.infra.exports import destination, files, frames

    if file is not None:
        destination.is_stream(file)  # what cannot be written is refused at once
    lines = columns = 0

    def counted(parts: Iterable[frames.Table]) -> Iterator[frames.Table]:
        nonlocal lines, columns
        for table in parts:
            lines, columns = lines + len(table[0].cells), len(table)
            yield table

    with rows.sorted() if history else nullcontext() as steps:
        table = counted([frames.trials(rows, places)] if steps is None else frames.curves(rows.history, steps))
        if file is None:
            sys.stdout.buffer.writelines(files.csv_bytes(table))
            sys.stdout.buffer.flush()
            return
        destination.put(file, (files.parquet_bytes if parquet else files.csv_bytes)(table))
    destination.tell(file, f"{file}: {lines} {'steps' if history else 'trials'}, {columns} columns")


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
            print(f"{key}: {text.pasted(written)}")
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
    from regrow.search.events import encode
    from regrow.search.history import specification
    from regrow.search.verify import verify as check
    from regrow.tasks.errors import UserCodeError
    from regrow.tasks.traces import user_trace

    store = Places.at(state).known(name)
    found = survey(store)
    if found.created is not None:
        make_importable(specification(found.created, found.opened))
    try:
        result = check(stream_events(store))
    except SearchCodeError as error:
        raise UserCodeError(str(error), user_trace(error.__cause__ or error)) from None
    end = Log.proven(store)
    if result.difference is None:
        kinds = ", ".join(f"{n} {kind}" for kind, n in result.kinds.items())
        print(f"{name}: {result.events} events fold without a contradiction ({kinds})")
        print(f"{name}: {result.decisions} decisions recomputed, all as recorded")
        if result.history.closed is not None:
            unproved = "the end of its log cannot be proved: an earlier version closed it, or its driver was killed right then"
            print(f"{name}: {f'its log is whole up to segment {end}, with which it was closed' if end else unproved}")
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
    return replay(places.known(name), name)


def plain_console() -> Console:
    """A terminal as it is; a file or a pipe takes lines of any length."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=1000)
