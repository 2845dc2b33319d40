"""A few lines at the bottom of a terminal that are drawn again and again, without flicker, while others print above them.

The lines stay in the normal screen, and the cursor is never hidden: a process that is killed leaves a terminal behind that
can be used. A picture is one write, in a synchronized update where the terminal knows that, and overwrites the one before
instead of erasing it.
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

PERIOD_SECONDS = 0.25
IDLE_PICTURES = 4
"""Without news every so many periods a picture is drawn all the same: times go on."""

Draw = Callable[[int, int], Sequence[Text]]
"""(width, height) to at most so many lines, none longer than that."""


class Screen(RenderHook):
    """Draws on a console within `shown`; `wake` says that there is something new."""

    def __init__(self, console: Console, draw: Draw) -> None:
        self._console, self._draw = console, draw
        self._lock = threading.RLock()
        self._lines: Sequence[Text] = ()
        self._on_screen: list[int] = []
        """Cells of each line that is there now; the cursor is in the last one."""
        self._size = (0, 0)
        self._news, self._done = threading.Event(), threading.Event()

    def wake(self) -> None:
        """There is something new to be drawn, when its time has come."""
        self._news.set()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draws within the block, and takes the lines away at its end. What is printed meanwhile goes above them."""
        self._console.push_render_hook(self)
        out, err = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (cast("TextIO", FileProxy(self._console, stream)) for stream in (out, err))
        thread = threading.Thread(target=self._paint, name="regrow-screen", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(timeout=5.0)
            sys.stdout, sys.stderr = out, err
            with self._lock:
                self._console.pop_render_hook()
                self._console.control(_control(self._rewound() + "\x1b[J"))
                self._on_screen = []

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Of the console: what is about to be printed."""
        with self._lock:
            if all(isinstance(one, Control) for one in renderables):
                return [_control("\x1b[?2026h" + self._rewound()), *renderables, _Picture(self)]
            return [_control("\x1b[?2026h" + self._rewound() + "\x1b[J"), *renderables, _Picture(self)]

    def segments(self) -> Iterator[Segment]:
        """The picture, written over the one before."""
        with self._lock:
            self._on_screen = [line.cell_len for line in self._lines]
            for place, line in enumerate(self._lines):
                yield from line.render(self._console)
                yield _raw("\x1b[K")
                if place < len(self._lines) - 1:
                    yield Segment.line()
            yield _raw("\x1b[J\x1b[?2026l")

    def _paint(self) -> None:
        waited = 0
        while not self._done.wait(PERIOD_SECONDS):
            size = (self._console.width, self._console.height)
            waited += 1
            if not (self._news.is_set() or size != self._size or waited >= IDLE_PICTURES):
                continue
            waited = 0
            self._news.clear()
            # One column and one row stay free: a line as wide as the terminal would wrap in some.
            lines = self._draw(max(1, size[0] - 1), max(1, size[1] - 1))
            with self._lock:
                self._lines = lines
                before, self._size = self._size, size
                narrower = 0 < size[0] < before[0]
                if narrower:  # the lines that are there were wrapped by the terminal
                    self._on_screen = [0] * sum(max(1, -(-cells // size[0])) for cells in self._on_screen)
                with self._console:
                    if narrower:
                        self._console.control(_control(self._rewound() + "\x1b[J"))
                        self._on_screen = []
                    self._console.print(Control(), end="")

    def _rewound(self) -> str:
        """To the beginning of the first of the lines that are on the screen."""
        above = len(self._on_screen) - 1
        return "\r" + (f"\x1b[{above}A" if above > 0 else "")


class _Picture:
    """The screen's lines as something that rich prints."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._screen.segments()


def _raw(code: str) -> Segment:
    """A control code as it is: rich's own types know no synchronized updates."""
    return Segment(code, None, [(ControlType.CARRIAGE_RETURN,)])


def _control(code: str) -> Control:
    made = Control()
    made.segment = _raw(code)
    return made
