r"""Safe terminal output: foreign text (values, names, tags, notes, messages) is shown as text, and
cannot control the terminal.

Escape sequences, other control characters, marks that change the writing direction and zero-width
characters are shown as Python escapes (`\x1b`, `\u202e`). Everything that the command line prints
goes through `PlainConsole` or `echo`, except JSON. Output may fail without ending the experiment:
that of a `Terminal`, and of `Events`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from regrow.infra.machine.streams import redirect_to_null
from regrow.tasks.output.traces import one_line, printable


class PlainConsole(Console):
    """A console on which only our code sets colours and control codes. No text is markup."""

    def __init__(self, **given: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **given)

    def render_str(self, text: str, **given: Any) -> Text:
        """Escape text before it is measured, so that its width is right."""
        return super().render_str(printable(text), **{**given, "markup": False, "emoji": False})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Escape the text of any renderable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


class LineTable(Table):
    """A table whose cells and titles are text, each on one line."""

    def __init__(self, **given: Any) -> None:
        plain = {"box": None, "pad_edge": False, "header_style": "bold", "caption_justify": "left"}
        super().__init__(**{**plain, **given})

    def add_column(  # type: ignore[override]  # all arguments are passed by name
        self, header: RenderableType = "", *, above: str = "", **given: Any
    ) -> None:
        """Add a column with a title of one line. `above`: a heading over this column and those
        after it, "" for none.
        """
        title = _in_a_line(header)
        if above:
            title = Text("\n").join([_in_a_line(Text(above, style="not bold dim")), title])
        super().add_column(title, **given)

    def add_row(self, *cells: RenderableType | None, **given: Any) -> None:
        """Add a row of cells of one line each."""
        super().add_row(*map(_in_a_line, cells), **given)


def _in_a_line(cell: RenderableType | None) -> Text:
    """Convert a cell to one line; a Text keeps its style, anything else has none."""
    style = cell.style if isinstance(cell, Text) else ""
    shown = "" if cell is None else str(cell)
    return Text(shown if shown.isprintable() else one_line(shown), style=style)


def echo(text: object = "", *, error: bool = False, end: str = "\n", flush: bool = False) -> None:
    """Print text for people, to standard error if `error`."""
    print(printable(str(text)), file=sys.stderr if error else sys.stdout, end=end, flush=flush)


class Terminal(PlainConsole):
    """A console that may lose its reader (`| tee`) or its disk without ending the experiment."""

    lost: str = ""
    """Why something was not written; "" if everything was, or if the reader has gone."""

    def on_broken_pipe(self) -> None:
        """Stop printing."""
        self.quiet = True
        redirect_to_null(self.file)

    @property
    def file(self) -> IO[str]:
        """The stream; of its failures only a missing reader is raised."""
        return cast("IO[str]", _Steady(super().file, self))

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream


class _Steady:
    def __init__(self, stream: IO[str], console: Terminal) -> None:
        self._stream, self._console = stream, console

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        with self._kept():
            self._stream.write(text)

    def flush(self) -> None:
        with self._kept():
            self._stream.flush()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self._console.lost = error.strerror or str(error)


def _escaped(line: bytes) -> bytes:
    """Return the same JSON with escapes for characters that could control a terminal."""
    text = line.decode()
    if text.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()


class Events:
    """Writes events to a file descriptor. `failed`: a write failed, nothing more is written.
    `writing`: a write is under way, which waits for the reader of a full pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.failed = self.writing = False

    def write(self, lines: Sequence[bytes]) -> None:
        """Write the lines, each with a line end."""
        data = b"".join(_escaped(line) + b"\n" for line in lines)
        self.writing = True
        try:
            while data and not self.failed:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self.failed = True
        finally:
            self.writing = False


@contextmanager
def only_events() -> Iterator[Events]:
    """Within the block, standard output goes to standard error, also of other processes."""
    kept = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield Events(kept)
    finally:
        with suppress(OSError):
            # writes what the stream still has in its buffer
            sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
