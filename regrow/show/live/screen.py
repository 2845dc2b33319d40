"""Redraws a few lines at the bottom of a terminal, without flicker, while other output is printed
above them.

The lines stay in the normal screen, and the cursor is never hidden: a killed process leaves a
usable terminal. A picture is one write, in a synchronized update if the terminal supports it, and
overwrites the previous one instead of erasing it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, cast

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.file_proxy import FileProxy
from rich.segment import ControlType, Segment
from rich.text import Text

from regrow.tasks.process import background

PERIOD_SECONDS = 0.25
IDLE_PICTURES = 4
"""After this many periods without news the picture is redrawn, since it shows elapsed times."""

Draw = Callable[[int, int], Sequence[Text]]
"""(width, height) to at most `height` lines, none longer than `width`."""


class Screen(RenderHook):
    """Draws on a console within `shown`; `wake` requests a new picture."""

    def __init__(self, console: Console, draw: Draw) -> None:
        self._console, self._draw = console, draw
        self._lock = threading.RLock()
        self._lines: Sequence[Text] = ()
        self._on_screen: list[int] = []
        """Cells of each line on the screen; the cursor is in the last one."""
        self._size = (0, 0)
        self._news = threading.Event()
        self._waited = 0
        """Periods since the last picture."""

    def request_redraw(self) -> None:
        """Request a new picture at the next period."""
        self._news.set()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw within the block, below other output, and remove the lines at its end."""
        self._console.push_render_hook(self)
        out, err = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (
            cast("TextIO", FileProxy(self._console, stream)) for stream in (out, err)
        )
        try:
            with background.every(PERIOD_SECONDS, self._paint, name="screen", wait=5.0):
                yield
        finally:
            sys.stdout, sys.stderr = out, err
            with self._lock:
                self._console.pop_render_hook()
                self._console.control(_control(self._rewound() + "\x1b[J"))
                self._on_screen = []

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Wrap what the console is about to print."""
        with self._lock:
            erase = "" if all(isinstance(one, Control) for one in renderables) else "\x1b[J"
            begin = _control("\x1b[?2026h" + self._rewound() + erase)
            return [begin, *renderables, _Picture(self)]

    def segments(self) -> Iterator[Segment]:
        """Yield the picture, written over the previous one."""
        with self._lock:
            self._on_screen = [line.cell_len for line in self._lines]
            for place, line in enumerate(self._lines):
                yield from line.render(self._console)
                yield _raw("\x1b[K")
                if place < len(self._lines) - 1:
                    yield Segment.line()
            yield _raw("\x1b[J\x1b[?2026l")

    def _paint(self) -> None:
        size = (self._console.width, self._console.height)
        self._waited += 1
        if not (self._news.is_set() or size != self._size or self._waited >= IDLE_PICTURES):
            return
        self._waited = 0
        self._news.clear()
        # One column and one row stay free: some terminals wrap a line of the full width.
        lines = self._draw(max(1, size[0] - 1), max(1, size[1] - 1))
        with self._lock:
            self._lines = lines
            before, self._size = self._size, size
            narrower = 0 < size[0] < before[0]
            if narrower:  # the terminal has wrapped the lines on the screen
                wrapped = (max(1, -(-cells // size[0])) for cells in self._on_screen)
                self._on_screen = [0] * sum(wrapped)
            with self._console:
                if narrower:
                    self._console.control(_control(self._rewound() + "\x1b[J"))
                    self._on_screen = []
                self._console.print(Control(), end="")

    def _rewound(self) -> str:
        """Return the codes that move to the beginning of the first line on the screen."""
        above = len(self._on_screen) - 1
        return "\r" + (f"\x1b[{above}A" if above > 0 else "")


class _Picture:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._screen.segments()


def _raw(code: str) -> Segment:
    """Return a raw control code: rich's types do not have synchronized updates."""
    return Segment(code, None, [(ControlType.CARRIAGE_RETURN,)])


def _control(code: str) -> Control:
    made = Control()
    made.segment = _raw(code)
    return made
