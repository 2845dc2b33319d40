"""`compare`: compares what several experiments reached, and with which budget."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from regrow.cli.console import plain_console
from regrow.cli.damage import damage_told_last
from regrow.cli.options import JsonOption, StateOption
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import read
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent
from regrow.search.history import History
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
    console = plain_console()
    labels = [one_line(one["name"]) for one in view["experiments"]]
    console.print(_outcomes(view, labels))
    console.print()
    console.print(_configurations([best_configuration(one) for one in courses], labels))
    for title, rows, key in (
        ("steps", view["by_steps"], "steps"),
        ("time", view["by_seconds"], "seconds"),
    ):
        if rows:
            console.print()
            console.print(_budgets(title, rows, key, labels, view["mode"]))


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


def _outcomes(view: dict[str, Any], labels: Sequence[str]) -> Table:
    found = view["experiments"]
    values = [None if one["best"] is None else one["best"]["value"] for one in found]
    table = _table("", labels)
    _row(
        table,
        f"{view['mode']} {one_line(view['metric'])}",
        [_value(v) for v in values],
        leading(values, view["mode"]),
    )
    _row(table, "of trial", [_of(one) for one in found], [])
    _row(table, "status", [one["status"] for one in found], [])
    if any(one["tags"] for one in found):
        _row(table, "tags", [one_line(", ".join(one["tags"])) for one in found], [])
    if any(one["notes"] for one in found):
        _row(
            table,
            "note",
            [one_line(one["notes"][-1]["text"]) if one["notes"] else "" for one in found],
            [],
        )
    _row(table, "trials", [f"{one['trials']} of {one['total']}" for one in found], [])
    _row(
        table,
        "done, stopped, failed",
        [f"{one['done']}, {one['stopped']}, {one['failed']}" for one in found],
        [],
    )
    least = {"steps": "steps", "wasted_steps": "steps done again", "losses": "losses"}
    for key, title in least.items():
        _row(
            table,
            title,
            [f"{one[key]:,}" for one in found],
            leading([one[key] for one in found], "min"),
        )
    elapsed = [one["ran_s"] for one in found]
    _row(table, "time", [text.duration(span) for span in elapsed], leading(elapsed, "min"))
    hours = [one["slot_hours"] for one in found]
    _row(table, "slot-hours", [f"{span:.3g}" for span in hours], leading(hours, "min"))
    if any(one["cost"] is not None for one in found):
        money = [one["cost"] for one in found]
        least_cost = [] if None in money else leading(money, "min")
        _row(
            table, "cost", ["" if price is None else f"{price:,.2f}" for price in money], least_cost
        )
    return table


def _of(one: dict[str, Any]) -> str:
    return "" if one["best"] is None else f"{one['best']['trial']} at step {one['best']['step']}"


def _configurations(configs: Sequence[dict[str, Any]], labels: Sequence[str]) -> Table:
    table = _table("best configuration", labels)
    for name in dict.fromkeys(key for config in configs for key in config):
        cells = [
            "-" if name not in config else one_line(text.value(config[name])) for config in configs
        ]
        differs = any(
            name not in config or config[name] != configs[0].get(name) for config in configs
        )
        title = f"{one_line(name)} {MARK}" if differs else one_line(name)
        table.add_row(Text(title, style="bold" if differs else ""), *map(Text, cells))
    return table


def _budgets(
    title: str, rows: Sequence[dict[str, Any]], key: str, labels: Sequence[str], mode: str
) -> Table:
    table = _table(f"reached after {title}", labels)
    for row in rows:
        budget = f"{row[key]:,}" if key == "steps" else text.duration(row[key])
        _row(
            table, budget, [_value(value) for value in row["values"]], leading(row["values"], mode)
        )
    return table


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _row(table: Table, title: str, cells: Sequence[str], best: Sequence[int]) -> None:
    marked = (
        Text(f"{cell} {MARK}", style="bold green") if place in best else Text(f"{cell}  ")
        for place, cell in enumerate(cells)
    )
    table.add_row(Text(title), *marked)


def _table(title: str, labels: Sequence[str]) -> Table:
    table = LineTable()
    table.add_column(title)
    for label in labels:
        table.add_column(label, justify="right", overflow="fold")
    return table
