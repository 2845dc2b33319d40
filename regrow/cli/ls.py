"""`ls`: the experiments of a state root, one per line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from regrow.cli import options, tables
from regrow.cli.console import plain_console
from regrow.cli.options import option
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import replay
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import HalfRemoved, Places
from regrow.search.durations import on_clock
from regrow.search.history import History
from regrow.show.live import text
from regrow.show.live.terminal import echo
from regrow.show.views import summaries
from regrow.show.views.names import LONGEST, shortened
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line
from regrow.tasks.process import disk


class SortKey(StrEnum):
    """Sort order of `ls`: the newest, the largest and the most first."""

    NAME = "name"
    AGE = "age"
    SIZE = "size"
    STATUS = "status"
    TRIALS = "trials"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A row of the list.

    Attributes:
        status: if it cannot be read, why.
        history: None: it cannot be read.
        size: bytes; None: not requested.

    """

    name: str
    status: str
    history: History | None = None
    notes: notes.Notes = notes.NONE
    size: int | None = None


def ls(
    state: options.State = None,
    sort: Annotated[
        SortKey, typer.Option("--sort", help="By what; the newest, largest and most first")
    ] = SortKey.NAME,
    tag: Annotated[str | None, option("Only those that have this tag")] = None,
    size: Annotated[
        bool,
        option(
            "How large each is also in a bucket, by a request for every 1,000 of its objects",
            "--size",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the experiments of the state root: status, best value, time of the last event, size,
    tags, last note.
    """
    places = Places.at(state)
    if sort is SortKey.SIZE and places.storage.metered and not size:
        raise UserError(f"--sort size: what is in {places.root} is only measured with --size")
    found: list[Listed] = []
    damaged: list[CorruptLog | UserError] = []
    for name in places.experiments():
        try:
            one = _listed(places, name, size=size or not places.storage.metered)
        except (CorruptLog, UserError) as error:
            damaged.append(error)
            status = "damaged" if isinstance(error, CorruptLog) else "unreadable"
            one = Listed(name=name, status=status)
        if tag is None or tag in one.notes.tags:
            found.append(one)
    found.sort(key=_ORDERS[sort])
    now = time.time()
    if as_json:
        for one in found:
            if one.history is not None:
                view = summaries.show(
                    one.history, alive=one.status == "running", now=now, notes=one.notes
                )
                del view["trials"]
                last = round(one.history.t_last, 3)
                print(json.dumps({**view, "name": one.name, "last_t": last, "bytes": one.size}))
    elif found:
        console = plain_console()
        console.print(_table(found, now, console.width))
        for one in found:
            if one.history is not None and one.history.name_in_log != one.name:
                echo(
                    f"{one.name}: renamed, its log has the name {one.history.name_in_log}; every"
                    f" command takes {one.name}"
                )
    elif not damaged:
        echo(f"no experiments in {places.root}{f' have the tag {tag}' if tag is not None else ''}")
    for broken in damaged[:-1]:
        echo(f"regrow: {broken}", error=True)
    if damaged:
        raise damaged[-1]


def _listed(places: Places, name: str, *, size: bool) -> Listed:
    held = places.storage.size(name)[1] if size else None
    try:
        store = places.known(name)
        history = replay(store, name)
    except HalfRemoved:
        return Listed(name=name, status="half-removed", size=held)
    if history.created is None:
        return Listed(name=name, status="empty", size=held)
    status = summaries.status(history, alive=runs(places, name))
    return Listed(name=name, status=status, history=history, notes=notes.read(store), size=held)


_ORDERS: dict[SortKey, Callable[[Listed], Any]] = {
    SortKey.NAME: lambda one: one.name,
    SortKey.AGE: lambda one: -one.history.t_last if one.history is not None else 0.0,
    SortKey.SIZE: lambda one: -(one.size or 0),
    SortKey.STATUS: lambda one: (one.status, one.name),
    SortKey.TRIALS: lambda one: -len(one.history.trials) if one.history is not None else 0,
}


_COLUMNS = (
    *("name", "status", "trials", "best", "value", "ran"),
    *("age", "size", "wasted", "tags", "note"),
)
_FOLDED = {"tags", "note"}
"""Columns whose texts may take several lines where the terminal is narrow."""
_GOING = ("wasted", "size", "ran", "age", "best")
"""Columns that are left out of a narrow terminal, the first one first."""


def _table(found: Sequence[Listed], now: float, width: int) -> Table:
    """Make the table, one line per experiment; empty columns are omitted. In a terminal of `width`
    cells names are cut, tags and notes folded, then columns left out.
    """
    rows: list[dict[str, str]] = []
    for one in found:
        row = {"name": one.name, "status": one.status}
        if (history := one.history) is not None:
            view = summaries.best(history)
            row |= {
                "trials": history.of_total(len(history.trials), "/"),
                "best": f"trial {view['trial']}" if view else "",
                "value": summaries.reached(view) if view else "",
                "ran": on_clock(history.elapsed()),
                "age": text.age(now - history.t_last),
                "wasted": str(history.lost_steps),
            }
        if one.size is not None:
            row["size"] = disk.size(one.size)
        row["tags"] = ", ".join(one.notes.tags)
        row["note"] = one_line(one.notes.texts[-1].text) if one.notes.texts else ""
        rows.append(row)
    shown = [column for column in _COLUMNS if any(row.get(column) for row in rows)]

    def room() -> int:
        """Return the cells that the other columns leave for the names."""
        taken = [max(len(c), *(cell_len(row.get(c, "")) for row in rows)) for c in shown[1:]]
        least = [
            min(w, LONGEST) if c in _FOLDED else w for c, w in zip(shown[1:], taken, strict=True)
        ]
        return width - sum(least) - tables.GAP * len(least)

    going = [column for column in _GOING if column in shown]
    while going and room() < LONGEST:
        shown.remove(going.pop(0))
    names = shortened([row["name"] for row in rows], [max(LONGEST, room())] * len(rows))
    table = tables.plain_table()
    for column in shown:
        table.add_column(column, no_wrap=column not in _FOLDED, overflow="fold")
    for row, name in zip(rows, names, strict=True):
        table.add_row(*(Text({**row, "name": name}.get(column, "")) for column in shown))
    if gone := [
        column for column in _GOING if any(row.get(column) for row in rows) and column not in shown
    ]:
        table.caption = f"not shown: {', '.join(gone)}; a wider terminal, --json"
    return table
