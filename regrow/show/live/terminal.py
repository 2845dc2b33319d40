r"""Safe terminal output: foreign text (values, names, tags, notes, messages) is shown as text, and
cannot control the terminal.

Escape sequences, other control characters, marks that change the writing direction and zero-width
characters are shown as Python escapes (`\x1b`, `\u202e`). Everything that the command line prints
goes through `PlainConsole` or `tell`, except JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

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
        super().add_row(*map(_in_a_line, cells), **given)


def _in_a_line(cell: RenderableType | None) -> Text:
    """Convert a cell to one line; a Text keeps its style, anything else has none."""
    style = cell.style if isinstance(cell, Text) else ""
    shown = "" if cell is None else str(cell)
    return Text(shown if shown.isprintable() else one_line(shown), style=style)


def tell(text: object = "", *, error: bool = False, end: str = "\n", flush: bool = False) -> None:
    """Print text for people, to standard error if `error`."""
    print(printable(str(text)), file=sys.stderr if error else sys.stdout, end=end, flush=flush)
