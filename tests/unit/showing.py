"""Everything that shows an experiment, called on one log in this process. What raises is a view's
fault. No test lives here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from regrow.apps.page import trials, views
from regrow.apps.page.asked import TableQuery
from regrow.apps.page.experiment_state import ExperimentState
from regrow.apps.page.links import Links
from regrow.cli import tables
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import read, replayed
from regrow.infra.state.notes import NONE
from regrow.infra.state.places import Places
from regrow.show import figures
from regrow.show.exports import files, frames
from regrow.show.exports.optuna_study import study
from regrow.show.exports.tensorboard import write
from regrow.show.live import sections, text
from regrow.show.live.grid import signs_of
from regrow.show.live.sections import compose
from regrow.show.report.report import html
from regrow.show.views import summaries
from regrow.tasks.ports.store import Store

NOW = 2_000_000_000.0


def lines(store: Store, on_damage: Callable[[CorruptLog], None] | None = None) -> str:
    """What `show`, `trials`, `best`, `watch` and the page say of it; with `on_damage` of what can
    be read of it.
    """
    console, places = (
        Console(file=io.StringIO(), width=100, highlight=False),
        Places(root="/nowhere"),
    )
    followed, rows = ExperimentState("shown"), replayed(store, "shown", on_damage=on_damage)
    read(store, followed.apply, followed.history, on_damage)
    history, board, signs = rows.history, followed.board, signs_of(console)
    for alive in (True, False):
        for line in text.summary(history, places, alive=alive, now=NOW):
            console.print(line, markup=False)
        for part in sections.report(board, NOW, signs, 100, alive=alive):
            console.print(*part)
        json.dumps(summaries.show(history, alive=alive, now=NOW))
        summary = followed.summary(alive=alive, now=NOW)
        views.experiment(followed, summary, NONE, Links(), places, NOW)
    for drawn in compose(
        board, width=100, height=60, now=NOW, signs=signs, banner="", trouble="", notes=NONE
    ):
        console.print(drawn)
    for line in [*text.best(history, places), *text.ending(history, places)]:
        console.print(line, markup=False)
    json.dumps(summaries.best(history))
    console.print(tables.trials(history, console))
    with rows.sorted() as steps:
        json.dumps(list(summaries.points(steps)))
        for table in tables.points(steps):
            console.print(table)
    trials.table(history, TableQuery())
    for trial in history.trials:
        json.dumps(summaries.trial_view(history, trial))
        trials.one(history, trial)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def pages(store: Store, folder: Path) -> str:
    """The report with all its figures, and the exports, into a new folder."""
    rows, places = replayed(store, "shown"), Places(root="/nowhere")
    for name in figures.KINDS:
        if (figure := figures.figure(rows, name)) is not None:
            figure.to_json()
    b"".join(files.csv_bytes([frames.trials(rows, places)]))
    with rows.sorted() as steps:
        b"".join(files.csv_bytes(frames.curves(rows.history, steps)))
    study(rows.history, storage=None, name=None, places=places)
    write(rows, folder)
    return html(rows, places, alive=False, now=NOW)
