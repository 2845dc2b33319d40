"""Trials and their steps as tables, for a terminal or a pipe. Only layout lives here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table

from regrow.infra.log.rows import Sorted
from regrow.search.history import History, TrialRecord
from regrow.search.numbers import columned
from regrow.show.live.terminal import LineTable
from regrow.show.live.text import value
from regrow.show.views import summaries
from regrow.show.views.names import LONGEST, headings, middle
from regrow.tasks.output.traces import one_line

GAP = 2
"""Cells between two columns."""
_AT_ONCE = 1000
"""Rows of a long table that are laid out together."""


def trials(
    history: History,
    console: Console,
    most: int | None = None,
    only: Sequence[TrialRecord] | None = None,
) -> Table:
    """Return a table of trials, best first: what stands, then parameters, then metrics, each below
    a heading.

    Where the terminal is too narrow, first names are cut in their middle, then texts, then columns
    are left out and counted below: parameters that are the same in all trials, metrics that are
    not the objective, other parameters.

    `only`: these trials, in their order; None: all.
    """
    shown = summaries.ranked(history)[:most] if only is None else only
    columns = [*_parameters(history, shown), *_metrics(history, shown)]
    made = _table(history, shown, columns)
    for texts in (False, True):
        if _width(console, made) > console.width:
            columns = _cut(columns, texts=texts)
            made = _table(history, shown, columns)
    going = sorted(columns, key=lambda column: column.rank)
    hidden = Counter[str]()
    while going and going[-1].rank and _width(console, made) > console.width:
        gone = going.pop()
        hidden[gone.group] += 1
        columns.remove(gone)
        made = _table(history, shown, columns)
    notes = []
    if hidden:
        count = [
            f"{n} more {group if n > 1 else group[:-1]}"
            for group, n in sorted(hidden.items())[::-1]
        ]
        notes.append(f"{', '.join(count)}: a wider terminal, --csv")
    if only is None and len(history.trials) > len(shown):
        more = len(history.trials) - len(shown)
        notes.append(f"{more} more trials: regrow trials {history.spec.name}")
    made.caption = "; ".join(notes) or None
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A parameter or a metric.

    Attributes:
        group: the heading that it stands under.
        title: its name as it is shown.
        texts: whether there is a value that is no number.
        rank: order in which columns are left out, the highest first; 0: never.

    """

    group: str
    name: str
    title: str
    cells: Sequence[str]
    rank: int
    texts: bool = False


def _cut(columns: Sequence[_Column], *, texts: bool) -> list[_Column]:
    cells = [
        [middle(cell, LONGEST) for cell in column.cells] if texts and column.texts else column.cells
        for column in columns
    ]
    titles = headings([column.name for column in columns], cells)
    return [
        replace(column, title=title, cells=cut)
        for column, title, cut in zip(columns, titles, cells, strict=True)
    ]


def _parameters(history: History, shown: Sequence[TrialRecord]) -> Iterator[_Column]:
    configs = [summaries.reached_with(history, trial) for trial in shown]
    for name in dict.fromkeys(key for trial in history.trials for key in trial.config):
        values = [config.get(name, "") for config in configs]
        cells = list(map(value, values))
        rank = 3 if len({*cells}) == 1 and len(shown) > 1 else 1
        yield _Column(
            group="parameters",
            name=one_line(name),
            title=one_line(name),
            cells=cells,
            rank=rank,
            texts=not all(isinstance(one, int | float) for one in values if one != ""),
        )


def _metrics(history: History, shown: Sequence[TrialRecord]) -> Iterator[_Column]:
    rows = [summaries.measured(trial) for trial in shown]
    objectives = [metric.name for metric in history.spec.metrics]
    for name in summaries.reported(history):
        found = [row.get(name) for row in rows]
        if name == objectives[0]:
            found = [trial.best[0] if trial.best else None for trial in shown]
        rank = 0 if name == objectives[0] else 1 if name in objectives else 2
        yield _Column(
            group="metrics",
            name=one_line(name),
            title=one_line(name),
            cells=columned(found),
            rank=rank,
        )


def _table(history: History, shown: Sequence[TrialRecord], columns: Sequence[_Column]) -> Table:
    groups = ("workers", "node") if history.spec.resources.ranked else ()
    table = plain_table("trial", "state", "step", "steps", "attempts", *groups)
    group = ""
    for column in columns:
        above = "" if column.group == group else column.group
        group = column.group
        table.add_column(column.title, above=above, no_wrap=True)
    for place, trial in enumerate(shown):
        table.add_row(
            str(trial.number),
            summaries.state_text(trial),
            str(trial.best[1]) if trial.best else "",
            str(trial.step),
            str(len(trial.attempts)),
            *(_group(trial) if groups else ()),
            *(column.cells[place] for column in columns),
        )
    return table


def _group(trial: TrialRecord) -> tuple[str, str]:
    """Return how many workers a trial's last attempt has, and their nodes."""
    last = trial.attempts[-1] if trial.attempts else None
    return ("", "") if last is None else (str(last.width), one_line(last.where or ""))


def _width(console: Console, table: Table) -> int:
    """Return how many cells a table would take on an unlimited console."""
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def points(found: Sorted) -> Iterator[Table]:
    """Yield every step of every trial, as tables to print below each other."""
    names = [*summaries.POINT, *map(summaries.metric_key, found.names)]
    titles = list(map(one_line, names))
    rows = summaries.points(found)
    widths = [0] * len(names)
    part = list(islice(rows, _AT_ONCE))
    while True:
        cells = [[one_line(value(point.get(name, ""))) for name in names] for point in part]
        table = LineTable(show_header=not any(widths))
        # At least as wide as the table above, so that columns are aligned.
        columns = zip(titles, *cells, strict=True)
        widths = [
            max(width, *map(cell_len, column))
            for width, column in zip(widths, columns, strict=True)
        ]
        for title, width in zip(titles, widths, strict=True):
            table.add_column(title, no_wrap=True, min_width=width)
        for row in cells:
            table.add_row(*row)
        yield table
        if not (part := list(islice(rows, _AT_ONCE))):
            return


def plain_table(*columns: str, right: Sequence[str] = (), wraps: bool = False) -> LineTable:
    """Return an empty table without lines, whose cells are only wrapped if `wraps`.

    `right`: the columns whose cells stand at their right edge.
    """
    table = LineTable()
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        table.add_column(column, justify=justify, no_wrap=not wraps)
    return table
