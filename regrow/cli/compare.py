"""`compare`: compares what several experiments reached, and with which budget."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import add
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regrow.cli import options
from regrow.cli.console import damage_raised_last, plain_console
from regrow.cli.tables import GAP
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import read
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.search.durations import duration
from regrow.search.events import AnyEvent
from regrow.search.history import History
from regrow.search.numbers import columned
from regrow.show.live import text
from regrow.show.live.terminal import LineTable
from regrow.show.views.comparison import (
    ABSENT,
    BestSoFarCurve,
    ComparisonRow,
    Course,
    best_configuration,
    configurations,
    differing,
    leading,
    outcomes,
)
from regrow.show.views.comparison import compare as compared
from regrow.show.views.names import LONGEST, shortened
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line

MARK = "*"
FOLDED = 24
"""Cells from which on a value is folded, and the title of a row is cut."""


def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Two or more experiments; NAME@STATE for another root"),
    ],
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Compare experiments that have one metric: what they reached, with how many steps, how much
    time and money.

    A star marks the best values, and the parameters that differ. Below, the table shows what each
    had reached after equal budgets: steps of all trials together, and time, counted from the first
    attempt's beginning in each session.
    """
    if len(names) < 2:
        raise UserError(f"compare takes two or more experiments, and was given {', '.join(names)}")
    with damage_raised_last() as noted:
        _compare([_course(name, state, noted) for name in names], as_json=as_json)


def _compare(courses: Sequence[Course], *, as_json: bool) -> None:
    if len(kinds := differing(courses)) > 1:
        whose = "; ".join(
            f"{c.label}: {c.history.objective.mode} {c.history.objective.name}" for c in courses
        )
        raise UserError(
            f"these experiments cannot be compared, they have {len(kinds)} objectives ({whose})"
        )
    view = compared(courses, time.time())
    if as_json:
        print(json.dumps(view))
        return
    console, mode = plain_console(), view["mode"]
    labels = [one["name"] for one in view["experiments"]]
    reached = outcomes(view, title=f"{mode} {view['metric']}", duration=duration)
    _print(console, "", labels, reached)
    console.print()
    _print(console, "best configuration", labels, _configurations(courses))
    for title, rows, key in (
        ("steps", view["by_steps"], "steps"),
        ("time", view["by_seconds"], "seconds"),
    ):
        if rows:
            console.print()
            _print(console, f"reached after {title}", labels, _budgets(rows, key, mode))


def _course(name: str, state: str | None, on_damage: Callable[[CorruptLog], None]) -> Course:
    bare, mark, root = name.partition("@")
    if mark and not root:
        raise UserError(f"{name}: no state root after the @; write NAME@STATE")
    places = Places.at(root or state)
    store = places.known(bare)
    history = History(bare)
    best_so_far = BestSoFarCurve(history)

    def apply(event: AnyEvent) -> None:
        history.apply(event)
        best_so_far.applied(event)

    read(store, apply, history, on_damage)
    return best_so_far.course(name, notes=notes.read(store), alive=runs(places, bare))


def _print(
    console: Console, title: str, labels: Sequence[str], rows: Iterable[ComparisonRow]
) -> None:
    """Print a table with a column for each experiment, in parts below each other if they do not
    fit. Values stay whole, and experiments' names are folded; titles of rows are cut.
    """
    rows = list(rows)
    titles = [title, *(one_line(row.title) for row in rows)]
    marks = [len(f" {MARK}") if row.differs else 0 for row in rows]
    wanted = max(map(add, map(cell_len, titles), [0, *marks]))
    whole = [
        max([LONGEST, *(cell_len(one_line(row.cells[n])) + len(f" {MARK}") for row in rows)])
        for n in range(len(labels))
    ]
    values = [min(cells, FOLDED) for cells in whole]
    first = 0
    while first < len(labels):
        room, last = console.width - min(wanted, FOLDED), first
        while last < len(labels) and (last == first or values[last] + GAP <= room):
            room -= values[last] + GAP
            last += 1
        if first:
            console.print()
        taken = sum(values[first:last]) + GAP * (last - first)
        width = max(LONGEST, min(wanted, console.width - taken))
        cut = shortened(titles, [width, *(width - mark for mark in marks)])
        width = max(map(add, map(cell_len, cut), [0, *marks]))
        spare = (console.width - taken - width) // (last - first)
        columns = [
            (labels[n], min(max(whole[n], cell_len(labels[n])), values[n] + max(0, spare)))
            for n in range(first, last)
        ]
        shown = [replace(row, title=one) for row, one in zip(rows, cut[1:], strict=True)]
        console.print(_table(cut[0], width, columns, shown, first))
        first = last


def _table(
    title: str,
    width: int,
    columns: Sequence[tuple[str, int]],
    rows: Sequence[ComparisonRow],
    first: int,
) -> Table:
    """Make a table. `columns`: names of experiments and cells; `first`: place of the first."""
    table = LineTable()
    table.add_column(title, no_wrap=True, width=width)
    for label, cells in columns:
        table.add_column(label, justify="right", overflow="fold", width=cells)
    for row in rows:
        marked = (
            Text(f"{cell} {MARK}", style="bold green") if place in row.best else Text(f"{cell}  ")
            for place, cell in list(enumerate(map(one_line, row.cells)))[
                first : first + len(columns)
            ]
        )
        named = Text(f"{row.title} {MARK}", style="bold") if row.differs else row.title
        table.add_row(named, *marked)
    return table


def _configurations(courses: Sequence[Course]) -> Iterator[ComparisonRow]:
    configs = [best_configuration(one) for one in courses]
    for name, values, differs in configurations(configs):
        cells = ["-" if one is ABSENT else text.value(one) for one in values]
        yield ComparisonRow(title=one_line(name), cells=cells, differs=differs)


def _budgets(rows: Sequence[dict[str, Any]], key: str, mode: str) -> Iterator[ComparisonRow]:
    for row in rows:
        yield ComparisonRow(
            title=f"{row[key]:,}" if key == "steps" else duration(row[key]),
            cells=columned(row["values"]),
            best=leading(row["values"], mode),
        )
