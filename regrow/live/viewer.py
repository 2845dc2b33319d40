"""Shows an experiment from its log as it grows: a picture in a terminal, lines elsewhere, events for machines."""

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
from regrow.live import text, words
from regrow.live.board import Board
from regrow.live.grid import signs_of
from regrow.live.layout import compose
from regrow.live.output import Events
from regrow.live.screen import Screen
from regrow.search.events import Opened, decode
from regrow.tasks.errors import RegrowError
from regrow.tasks.traces import one_line

PROGRESS_SECONDS = 60.0
"""Where lines are printed, one of these says how far it is."""

NOTES_SECONDS = 10.0
"""Between looks at what people noted."""


class Viewer:
    """Takes the log's segments and shows what they say, within `showing`.

    `events`: write the events themselves there, and nothing on the console. `quiet`: show nothing. `called`: the
    experiment's name, if the log may have another one. `notes` reads what people noted of the experiment; asked now and then
    while pictures are shown.
    """

    def __init__(
        self, console: Console, *, quiet: bool = False, events: Events | None = None, called: str | None = None,
        notes: Callable[[], Notes] = lambda: NONE,
    ) -> None:
        self._console, self._quiet, self._events, self._called = console, quiet, events, called
        self._read_notes, self._notes, self._noted = notes, NONE, -math.inf
        self.board = Board(called)
        self.banner = ""
        """What is wrong, "" for nothing."""
        self.trouble = ""
        """Why what the experiment writes cannot be saved at present, "" if it can."""
        self._told_up_to: int | None = None
        """The segment up to which everything was told, or was told by somebody before; None: that is to be found."""
        self._untold: list[tuple[Sequence[bytes], list[str]]] = []
        """The lines of segments, where they are wanted, and what a person is to be told of each."""
        self._screen: Screen | None = None
        self._folding = threading.Lock()
        self._progress = time.monotonic()
        self._signs = signs_of(console)
        self._ready = False

    @property
    def _pictures(self) -> bool:
        return self._console.is_interactive and self._console.file.isatty()

    def say(self, line: str) -> None:
        """Prints a line for people, unless only events or nothing is wanted."""
        if not self._quiet and self._events is None:
            self._console.print(line, markup=False, soft_wrap=True)

    def line(self, line: str) -> None:
        """Prints a line of what is going on, unless that is seen in pictures."""
        if self._screen is None:
            self.say(line)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Draws pictures within the block, where that is how it is shown."""
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
        """The log is about to come from its beginning again. What was told is not told again."""
        with self._folding:
            self.board, self._ready = Board(self._called), False

    def skip(self, number: int) -> None:
        """Nothing up to segment `number` is to be told."""
        self._told_up_to = number

    def take(self, segments: Segments) -> None:
        """The next segments of the log. Of those that are there when the looking begins the newest session is told."""
        looking, more = self._told_up_to is None, full(segments)
        for number, lines in segments:
            if looking and _begins_session(lines):
                self._untold.clear()
            with self._folding:
                told = [line for event in map(decode, lines) for line in self.board.apply(event)]
            if number > (self._told_up_to or 0):
                self._untold.append((lines if self._events is not None else (), told))
        if looking and more:
            return
        if segments:
            self._told_up_to = max(self._told_up_to or 0, segments[-1][0])
        for written, told in self._untold:
            if self._events is not None:
                self._events.write(written)
            for line in told:
                self.line(line)
        self._untold.clear()
        self._ready = self._ready or (bool(segments) and not more)
        if segments and self._screen is not None:
            self._screen.wake()

    def progress(self) -> None:
        """Now and then a line that says how far it is, where there are no pictures."""
        if self._screen is not None and time.monotonic() - self._noted > NOTES_SECONDS:
            self._noted = time.monotonic()
            with suppress(RegrowError):  # the store is away, which is told elsewhere
                self._notes = self._read_notes()
        if self._pictures or time.monotonic() - self._progress < PROGRESS_SECONDS:
            return
        self._progress = time.monotonic()
        if self.board.history.opened is not None and self.board.history.closed is None:
            self.say(standing(self.board, time.time()))

    def _draw(self, width: int, height: int) -> Sequence[Text]:
        with self._folding:
            board = self.board if self._ready else Board(self._called)  # a long log is not shown while it is still being read
            return compose(
                board, width=width, height=height, now=time.time(), signs=self._signs, banner=self.banner, trouble=self.trouble,
                notes=self._notes,
            )


def standing(board: Board, now: float) -> str:
    """How an experiment stands, in a line."""
    history = board.history
    left = board.left_seconds(now)
    best = history.leader
    parts = [
        f"{history.spec.name}: {board.share() * 100:.0f} %, {history.ended} of {history.total} trials",
        f"{board.useful:,} steps",
        f"ran {text.duration(history.elapsed(now))}",
        *([f"{text.duration(left)} left"] if left is not None else []),
        *([f"{board.incidents.count} loss{'' if board.incidents.count == 1 else 'es'}"] if board.incidents.count else []),
        *([words.waiting(waiting)] if (waiting := board.waiting(now)) else []),
    ]
    if best is not None and best.best is not None:
        parts.append(f"best {one_line(history.objective.name)} {text.number(best.best[0])} (trial {best.number})")
    return ", ".join(parts)


def _begins_session(lines: Sequence[bytes]) -> bool:
    return any(b'"opened"' in line[:64] and isinstance(event := decode(line), Opened) and event.by == "driver" for line in lines)
