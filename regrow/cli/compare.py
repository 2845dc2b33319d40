"""`compare`: compares what several experiments reached, and with which budget."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from regrow.cli.console import damage_told_last, plain_console
from regrow.cli.options import JsonOption, StateOption
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import read
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent
from regrow.search.history import History
from regrow.search.numbers import columned
from regrow.show.live import text
from regrow.show.live.terminal import LineTable
from regrow.show.views.comparison import (
    BestSoFarCurve,
    Course,
    best_configuration,
    differing,
    leading,
)
from regrow.show.views.comparison import compare as compared
from regrow.show.views.outcomes import ABSENT, Row, configurations, outcomes
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line

MARK = "*"


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Two or more experiments; NAME@STATE for another root"
        ),
    ],
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare experiments that have one metric: what they reached, with how many steps, how much
    time and money.

    A star marks the best values, and the parameters that differ. Below, the table shows what each
    had reached after equal budgets: steps of all trials together, and time, counted from the first
    attempt's beginning in each session.
    """
    if len(names) < 2:
        raise UserError(f"compare takes two or more experiments, and was given {', '.join(names)}")
    with damage_told_last() as noted:
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
    reached = outcomes(view, title=f"{mode} {view['metric']}", duration=text.duration)
    console.print(_table("", labels, reached))
    console.print()
    console.print(_configurations(courses, labels))
    for title, rows, key in (
        ("steps", view["by_steps"], "steps"),
        ("time", view["by_seconds"], "seconds"),
    ):
        if rows:
            console.print()
            console.print(_table(f"reached after {title}", labels, _budgets(rows, key, mode)))


def _course(name: str, state: str | None, on_damage: Callable[[CorruptLog], None]) -> Course:
    bare, mark, root = name.partition("@")
    if mark and not root:
        raise UserError(f"{name}: no state root after the @; write NAME@STATE")
    places = Places.at(root or state)
    store = places.known(bare)
    history = History(bare)
    climb = BestSoFarCurve(history)

    def apply(event: AnyEvent) -> None:
        history.apply(event)
        climb.applied(event)

    read(store, apply, history, on_damage)
    return climb.course(name, notes=notes.read(store), alive=runs(places, bare))


def _table(title: str, labels: Sequence[str], rows: Iterable[Row]) -> Table:
    table = LineTable()
    table.add_column(title)
    for label in labels:
        table.add_column(label, justify="right", overflow="fold")
    for row in rows:
        marked = (
            Text(f"{cell} {MARK}", style="bold green") if place in row.best else Text(f"{cell}  ")
            for place, cell in enumerate(map(one_line, row.cells))
        )
        table.add_row(row.title, *marked)
    return table


def _configurations(courses: Sequence[Course], labels: Sequence[str]) -> Table:
    table = _table("best configuration", labels, ())
    configs = [best_configuration(one) for one in courses]
    for name, values, differs in configurations(configs):
        title = Text(f"{one_line(name)} {MARK}", style="bold") if differs else name
        table.add_row(title, *("-" if one is ABSENT else text.value(one) for one in values))
    return table


def _budgets(rows: Sequence[dict[str, Any]], key: str, mode: str) -> Iterator[Row]:
    for row in rows:
        yield Row(
            title=f"{row[key]:,}" if key == "steps" else text.duration(row[key]),
            cells=columned(row["values"]),
            best=leading(row["values"], mode),
        )
