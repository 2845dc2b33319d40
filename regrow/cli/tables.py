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
from regrow.show.live.terminal import LineTable
from regrow.show.live.text import config, ranked, value
from regrow.show.views import summaries
from regrow.tasks.output.traces import one_line

_AT_ONCE = 1000
"""Rows of a long table that are laid out together."""


def trials(history: History, console: Console, most: int | None = None) -> Table:
    """Return a table of trials, best first; with a column per parameter if the console is wide
    enough, else one for all.
    """
    names = list(dict.fromkeys(key for trial in history.trials for key in trial.config))
    shown = ranked(history)[:most]
    wide = _trials(history, shown, {n: [value(t.config.get(n, "")) for t in shown] for n in names})
    if _width(console, wide) > console.width:
        room = max(12, console.width - _width(console, _trials(history, shown, {})) - 2)
        short = [
            line if len(line) <= room else line[: room - 1] + "…" for line in map(config, shown)
        ]
        wide = _trials(history, shown, {"configuration": short})
    if len(history.trials) > len(shown):
        wide.caption = f"{len(history.trials) - len(shown)} more: regrow trials {history.spec.name}"
    return wide


def _trials(
    history: History, shown: Sequence[TrialRecord], settings: Mapping[str, Sequence[str]]
) -> Table:
    groups = ("workers", "node") if history.spec.resources.ranked else ()
    table = plain_table(
        "trial",
        "state",
        history.spec.objective.name,
        "step",
        "steps",
        "attempts",
        *groups,
        *settings,
    )
    for place, trial in enumerate(shown):
        number, step = (f"{trial.best[0]:.5g}", str(trial.best[1])) if trial.best else ("", "")
        cells = [
            *(_group(trial) if groups else ()),
            *(column[place] for column in settings.values()),
        ]
        table.add_row(
            str(trial.number),
            trial.state.value,
            number,
            step,
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
