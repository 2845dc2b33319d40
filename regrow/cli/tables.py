"""Trials and their steps as tables, for a terminal or a pipe. Only layout lives here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from regrow.infra.log.rows import Sorted
from regrow.search.history import History, TrialRecord
from regrow.search.numbers import columned
from regrow.show.live.terminal import LineTable
from regrow.show.live.text import middle, value
from regrow.show.views import summaries
from regrow.tasks.output.traces import one_line

LONGEST = 12
"""Cells of a parameter's name where the table would be wider than the terminal otherwise."""
_AT_ONCE = 1000
"""Rows of a long table that are laid out together."""


def trials(
    history: History,
    console: Console,
    most: int | None = None,
    only: Sequence[TrialRecord] | None = None,
) -> Table:
    """Return a table of trials, best first, with a column for each parameter that there is room
    for: those that differ between the trials first. Names, then texts are cut in their middle.

    `only`: these trials, in their order; None: all.
    """
    names = list(dict.fromkeys(key for trial in history.trials for key in trial.config))
    shown = summaries.ranked(history)[:most] if only is None else only
    columns = {n: [value(t.config.get(n, "")) for t in shown] for n in names}
    made = _trials(history, shown, columns)
    hidden = 0
    if _width(console, made) > console.width:
        columns = {n: [middle(cell, LONGEST) for cell in column] for n, column in columns.items()}
        made = _trials(history, shown, columns, longest=LONGEST)
    kept = sorted(columns, key=lambda name: len({*columns[name]}) == 1)
    while kept and _width(console, made) > console.width:
        kept.pop()
        hidden += 1
        left = {name: column for name, column in columns.items() if name in kept}
        made = _trials(history, shown, left, longest=LONGEST)
    notes = []
    if hidden:
        notes.append(
            f"{hidden} more parameter{'' if hidden == 1 else 's'}: a wider terminal, --csv"
        )
    if only is None and len(history.trials) > len(shown):
        more = len(history.trials) - len(shown)
        notes.append(f"{more} more trials: regrow trials {history.spec.name}")
    made.caption = "; ".join(notes) or None
    return made


def _trials(
    history: History,
    shown: Sequence[TrialRecord],
    settings: Mapping[str, Sequence[str]],
    *,
    longest: int | None = None,
) -> Table:
    """Make the table. `longest`: names are cut to this, or to the width of their values if that is
    more; None: they are not cut.
    """
    titles = [
        name if longest is None else middle(name, max(longest, *map(cell_len, column)))
        for name, column in settings.items()
    ]
    groups = ("workers", "node") if history.spec.resources.ranked else ()
    table = plain_table(
        "trial",
        "state",
        history.spec.objective.name
        if longest is None
        else middle(history.spec.objective.name, 2 * longest),
        "step",
        "steps",
        "attempts",
        *groups,
        *titles,
    )
    values = columned([trial.best[0] if trial.best else None for trial in shown])
    for place, trial in enumerate(shown):
        cells = [
            *(_group(trial) if groups else ()),
            *(column[place] for column in settings.values()),
        ]
        table.add_row(
            str(trial.number),
            summaries.standing(trial),
            values[place],
            str(trial.best[1]) if trial.best else "",
            str(trial.step),
            str(len(trial.attempts)),
            *cells,
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


def plain_table(*columns: str) -> Table:
    """Return an empty table without lines, whose cells are never wrapped."""
    table = LineTable()
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
