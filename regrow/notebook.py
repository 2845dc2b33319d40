"""Experiments in a notebook: one table in the cell, updated while it runs, and trials as HTML.

IPython is only imported if it already runs; `tests/system/test_notebook.py` tests this with a real
kernel.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from regrow.infra.log.log import Segments
from regrow.search.history import History, TrialRecord
from regrow.show.live.board import Board
from regrow.show.live.terminal import PlainConsole
from regrow.show.live.viewer import Viewer, status_line
from regrow.show.views import summaries
from regrow.show.web import templates

PERIOD_SECONDS = 0.5
"""Minimum time between two updates: each is a message to the browser."""
IDLE_SECONDS = 2.0
"""The table is updated this often without new events, since it shows elapsed times."""
ROWS = 10
"""Maximum number of trials in the table: running trials first, then the best."""
LINES = 8
"""Maximum number of lines below the table."""


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel; IPython in a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def table(history: History, shown: Sequence[TrialRecord]) -> str:
    """Return an HTML table of these trials with their best values; "" for none."""
    return _html(**_cells(history, shown))


def _cells(history: History, shown: Sequence[TrialRecord]) -> dict[str, Any]:
    from regrow.show.figures.series import short

    names = [parameter.name for parameter in history.spec.space.parameters]
    heads = ["trial", "state", history.spec.objective.name, "step", "steps", *names]
    rows = [
        [
            t.number,
            summaries.state_text(t),
            *((short(t.best[0]), t.best[1]) if t.best else ("", "")),
            t.step,
        ]
        + [short(t.config.get(name, "")) for name in names]
        for t in shown
    ]
    return {"heads": heads, "rows": rows}


def _html(**parts: Any) -> str:
    """Return what a cell shows, of those parts that there are."""
    known = {"name": "", "line": "", "rows": (), "more": 0, "messages": ()}
    return templates().get_template("notebook.html.j2").render(known | parts)


class NotebookViewer(Viewer):
    """Shows an experiment in its cell: the first messages, the table, the last lines."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(PlainConsole(file=sys.stdout, force_terminal=False), quiet=quiet)
        self._messages: list[str] = []
        self._handle: Any = None
        self._drawn = 0.0

    def say(self, line: str) -> None:
        """Keep a line below the table."""
        if not self._quiet:
            self._messages = [*self._messages, line][-LINES:]
            self._show()

    def line(self, line: str) -> None:
        """Do nothing: the table shows the progress."""

    def apply(self, segments: Segments) -> None:
        super().apply(segments)
        if segments and time.monotonic() - self._drawn > PERIOD_SECONDS:
            self._show()

    def progress(self) -> None:
        if time.monotonic() - self._drawn > IDLE_SECONDS:
            self._show()

    def end(self, lines: Iterable[str]) -> None:
        """Show the final state: `lines` replace the earlier messages."""
        self._messages = list(lines)
        self._show(over=True)

    def _show(self, *, over: bool = False) -> None:
        if self._quiet:
            return
        display = importlib.import_module("IPython.display").display

        self._drawn = time.monotonic()
        with self._folding:
            board = self.board if self._ready else Board()
            picture = {"text/plain": self._plain(board), "text/html": self._html(board, over=over)}
        if self._handle is None:
            self._handle = display(picture, raw=True, display_id=True)
        else:
            self._handle.update(picture, raw=True)

    def _plain(self, board: Board) -> str:
        now = [] if board.history.opened is None else [status_line(board, time.time())]
        return "\n".join([*now, *self._messages])

    def _html(self, board: Board, *, over: bool) -> str:
        history = board.history
        if history.opened is None:
            return _html(line="starting ...", messages=self._messages)
        status = summaries.status(history, alive=not over)
        head = status_line(board, time.time()).removeprefix(f"{history.spec.name}: ")
        running = [history.trials[number] for number in sorted(history.running)]
        best = [trial for trial in summaries.ranked(history) if trial.number not in history.running]
        shown = [*running, *best][:ROWS]
        return _html(
            name=history.spec.name,
            line=f"is {status}: {head}",
            **_cells(history, shown),
            more=len(history.trials) - len(shown),
            messages=self._messages,
        )
