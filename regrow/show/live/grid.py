"""Lays out rows of cells as lines of a given width: columns that do not fit are dropped, the least
important first. Knows nothing of trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

GAP = 2
LEAST_FLEX = 14
"""Minimum width of a flexible column; a narrower one is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Characters for drawing, by what the terminal supports."""

    levels: str = "▁▂▃▄▅▆▇█"
    full: str = "━"
    empty: str = "─"
    more: str = "…"
    dot: str = " · "
    arrow: str = "←"
    up: str = "↑"
    down: str = "↓"


ASCII = Signs(
    levels="_.-=+*#@", full="#", empty="-", more="~", dot=" | ", arrow="<-", up="max", down="min"
)


def signs_of(console: Console) -> Signs:
    """Return the characters that a console supports."""
    return Signs() if console.encoding.lower().startswith("utf") else ASCII


@dataclass(slots=True, kw_only=True)
class Column:
    """Cells, one per row.

    Attributes:
        style: one for all of its cells, or one for each.
        rank: order in which columns are dropped if space is short: higher first, 0 never.
        right: aligned to the right.
        flex: takes the remaining width, and is cut there.

    """

    title: str
    cells: list[str] = field(default_factory=list)
    style: str | Sequence[str] = ""
    """One for all of its cells, or one for each."""
    rank: int = 0
    right: bool = False
    flex: bool = False

    def width(self, rows: int, *, titled: bool) -> int:
        """Return the width of its first rows and, if `titled`, its title."""
        return max(
            [cell_len(cell) for cell in self.cells[:rows]]
            + [cell_len(self.title) if titled else 0],
            default=0,
        )


def lines(
    columns: Sequence[Column], width: int, rows: int, signs: Signs, *, titled: bool = True
) -> list[Text]:
    """Return a line of titles, the first one bold, and at most `rows` of the rows; none is longer
    than `width`.
    """
    count = min(rows, max((len(column.cells) for column in columns), default=0))
    shown = [column for column in columns if column.flex or any(column.cells[:count])]
    if columns and columns[0] not in shown:
        shown.insert(0, columns[0])
    widths = {id(column): column.width(count, titled=titled) for column in shown}

    def taken(those: Iterable[Column]) -> int:
        return (
            sum((min(widths[id(c)], LEAST_FLEX) if c.flex else widths[id(c)]) + GAP for c in those)
            - GAP
        )

    while taken(shown) > width and any(column.rank for column in shown):
        shown.remove(max(reversed(shown), key=lambda column: column.rank))
    left = width - sum(widths[id(c)] + GAP for c in shown if not c.flex)
    for column in shown:
        if column.flex:
            widths[id(column)] = max(0, min(widths[id(column)], left))
    titles = ["bold", *["dim"] * (len(shown) - 1)]
    found = [_line(shown, widths, [c.title for c in shown], titles, width, signs)] if titled else []
    for row in range(count):
        styles = [c.style if isinstance(c.style, str) else c.style[row] for c in shown]
        found.append(_line(shown, widths, [c.cells[row] for c in shown], styles, width, signs))
    return found


def cut(text: str, width: int, signs: Signs) -> str:
    """Cut a text to at most `width` cells, with a mark where it is cut."""
    if cell_len(text) <= width:
        return text
    return (
        set_cell_size(text, max(0, width - len(signs.more))).rstrip() + signs.more
        if width > len(signs.more)
        else ""
    )


def flow(items: Sequence[tuple[str, str]], width: int, most: int, signs: Signs) -> list[Text]:
    """Place (text, style) items after each other, on at most `most` lines; items that do not fit
    are omitted, from the end.
    """
    found: list[Text] = []
    for what, style in items:
        room = width if not found else width - found[-1].cell_len - len(signs.dot)
        if not found or cell_len(what) > room:
            if len(found) == most:
                continue  # a shorter one may still fit
            found.append(Text(no_wrap=True).append(cut(what, width, signs), style=style))
        else:
            found[-1].append(signs.dot, style="dim").append(what, style=style)
    return found


def bar(share: float, width: int, signs: Signs) -> Text:
    """Draw a progress bar."""
    done = min(width, round(share * width)) if share < 1 else width
    return Text.assemble((signs.full * done, "green"), (signs.empty * (width - done), "dim"))


def spark(values: Sequence[float], width: int, signs: Signs) -> str:
    """Draw a curve in one line, from its least to its greatest value; each position has the last of
    its values.
    """
    if len(values) < 2:
        return ""
    places = min(width, len(values))
    picked = [values[(place + 1) * len(values) // places - 1] for place in range(places)]
    low, high = min(picked), max(picked)
    # Halved, so that the difference of two values does not overflow.
    span, most = (
        high / 2 - low / 2,
        len(signs.levels) - 1,
    )
    return "".join(
        signs.levels[round((value / 2 - low / 2) / span * most) if span else 0] for value in picked
    )


def _line(
    shown: Sequence[Column],
    widths: dict[int, int],
    cells: Sequence[str],
    styles: Sequence[str],
    width: int,
    signs: Signs,
) -> Text:
    line = Text(no_wrap=True)
    for place, (column, cell, style) in enumerate(zip(shown, cells, styles, strict=True)):
        wide = widths[id(column)]
        what = cut(cell, wide, signs)
        pad = " " * max(0, wide - cell_len(what))
        last = place == len(shown) - 1
        line.append(pad + what if column.right else what if last else what + pad, style=style)
        if not last:
            line.append(" " * GAP)
    if line.cell_len > width:
        line.truncate(width)
    line.rstrip()
    return line
