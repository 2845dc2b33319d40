"""Shows an experiment from its log: a live screen, lines, or events for machines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.text import Text

from regrow.infra.log.log import Segments, full
from regrow.infra.state.notes import NONE, Notes
from regrow.search.durations import on_clock
from regrow.search.events import Opened, decode
from regrow.search.history import repeats
from regrow.show.live import words
from regrow.show.live.board import Board
from regrow.show.live.grid import signs_of
from regrow.show.live.screen import Screen
from regrow.show.live.sections import compose
from regrow.show.live.terminal import Events
from regrow.tasks.errors import RegrowError
from regrow.tasks.output.traces import one_line

PROGRESS_SECONDS = 60.0
"""Interval of the progress lines, if lines are printed."""

NOTES_SECONDS = 10.0
"""Interval in which the notes are read."""


class Viewer:
    """Takes the log's segments and shows them, within `showing`.

    `events`: write only the events, there, and nothing on the console. `quiet`: show nothing.
    `called`: the experiment's name, if it differs from the log's. `notes` reads the experiment's
    notes; called periodically while the live screen is shown.
    """

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool = False,
        events: Events | None = None,
        called: str | None = None,
        notes: Callable[[], Notes] = lambda: NONE,
    ) -> None:
        self._console, self._quiet, self._events, self._called = console, quiet, events, called
        self._read_notes, self._notes, self._noted = notes, NONE, -math.inf
        self.board = Board(called)
        self.banner = ""
        """Why nothing runs, "" if it runs."""
        self.trouble = ""
        """Why the experiment's output cannot be saved at present, "" if it can."""
        self._shown_up_to: int | None = None
        """The segment up to which all was shown, also by an earlier process; None: unknown."""
        self._pending: list[tuple[Sequence[bytes], list[str]]] = []
        """The lines of segments, if events are written, and the lines for people about each."""
        self._screen: Screen | None = None
        self._folding = threading.Lock()
        self._progress = time.monotonic()
        self._signs = signs_of(console)
        self._ready = False

    @property
    def _pictures(self) -> bool:
        return self._console.is_interactive and self._console.file.isatty()

    def say(self, line: str) -> None:
        """Print a line for people, unless only events or nothing is wanted."""
        if not self._quiet and self._events is None:
            self._console.print(line, markup=False, soft_wrap=True)

    def line(self, line: str) -> None:
        """Print a line about an event, unless the live screen shows it."""
        if self._screen is None:
            self.say(line)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Draw the live screen within the block, if it is used."""
        if self._quiet or self._events is not None or not self._pictures:
            yield
            return
        self._screen = Screen(self._console, self._draw)
        try:
            with self._screen.shown():
                yield
        finally:
            self._screen = None

    def restart(self) -> None:
        """Prepare for reading the log from its beginning, without showing events twice."""
        with self._folding:
            self.board, self._ready = Board(self._called), False

    def skip(self, number: int) -> None:
        """Show nothing up to segment `number`."""
        self._shown_up_to = number

    def apply(self, segments: Segments) -> None:
        """Apply the log's next segments. Of those at the start, the newest session is shown."""
        looking, more = self._shown_up_to is None, full(segments)
        for number, lines in segments:
            if looking and _begins_session(lines):
                self._pending.clear()
            with self._folding:
                texts = [line for event in map(decode, lines) for line in self.board.apply(event)]
            if number > (self._shown_up_to or 0):
                self._pending.append((lines if self._events is not None else (), texts))
        if looking and more:
            return
        if segments:
            self._shown_up_to = max(self._shown_up_to or 0, segments[-1][0])
        for written, texts in self._pending:
            if self._events is not None:
                self._events.write(written)
            for line in texts:
                self.line(line)
        self._pending.clear()
        self._ready = self._ready or (bool(segments) and not more)
        if segments and self._screen is not None:
            self._screen.request_redraw()

    def progress(self) -> None:
        """Print a progress line periodically, if there is no live screen."""
        if self._screen is not None and time.monotonic() - self._noted > NOTES_SECONDS:
            self._noted = time.monotonic()
            with suppress(RegrowError):  # the store is unavailable, which is reported elsewhere
                self._notes = self._read_notes()
        if self._pictures or time.monotonic() - self._progress < PROGRESS_SECONDS:
            return
        self._progress = time.monotonic()
        if self.board.history.opened is not None and self.board.history.closed is None:
            self.say(status_line(self.board, time.time()))

    def _draw(self, width: int, height: int) -> Sequence[Text]:
        with self._folding:
            # A long log is not shown until it was read completely.
            board = self.board if self._ready else Board(self._called)
            return compose(
                board,
                width=width,
                height=height,
                now=time.time(),
                signs=self._signs,
                banner=self.banner,
                trouble=self.trouble,
                notes=self._notes,
            )


def status_line(board: Board, now: float) -> str:
    """Return the state of an experiment in a line."""
    history = board.history
    share = f"{board.share() * 100:.0f} %"
    parts = [
        f"{history.spec.name}: {share}, {history.of_total(history.ended)} trials",
        f"{board.useful:,} steps",
        f"ran {on_clock(history.elapsed(now))}",
    ]
    if (left := board.left_seconds(now)) is not None:
        parts.append(f"{on_clock(left)} left")
    if losses := board.incidents.count:
        parts.append(words.losses(losses))
    if waiting := board.waiting(now):
        parts.append(words.waiting(waiting))
    if (best := repeats.best(history)) is not None:
        name = one_line(history.objective.name)
        parts.append(f"best {name} {best.shown} (trial {best.trial.number})")
    return ", ".join(parts)


def _begins_session(lines: Sequence[bytes]) -> bool:
    return any(
        b'"opened"' in line[:64]
        and isinstance(event := decode(line), Opened)
        and event.by == "driver"
        for line in lines
    )
