"""Lays out rows of cells in a width: columns that do not fit go, the least important first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

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
    return Signs() if console.encoding.lower().startswith("utf") else ASCII


@dataclass(frozen=True, slots=True)
class Column:
    """How a column is shown.

    Attributes:
        style: one for all of its cells, or one for each.
        rank: order in which columns are dropped if space is short: higher first, 0 never.
        right: aligned to the right.
        flex: takes the remaining width, and is cut there.

    """

    title: str
    _: KW_ONLY
    style: str | Sequence[str] = ""
    rank: int = 0
    right: bool = False
    flex: bool = False


def lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, signs: Signs
) -> list[Text]:
    """Return a line of titles, the first one bold, and one for each row, which has a cell for each
    column; none is longer than `width`. Columns of empty cells are left out.
    """
    shown = [
        n for n, column in enumerate(columns) if n == 0 or column.flex or any(r[n] for r in rows)
    ]
    table = [[column.title for column in columns], *rows]
    widths = {n: max(cell_len(row[n]) for row in table) for n in shown}

    def taken() -> int:
        least = (min(widths[n], LEAST_FLEX) if columns[n].flex else widths[n] for n in shown)
        return sum(least) + GAP * (len(shown) - 1)

    while taken() > width and any(columns[n].rank for n in shown):
        shown.remove(max(reversed(shown), key=lambda n: columns[n].rank))
    left = width - sum(widths[n] + GAP for n in shown if not columns[n].flex)
    for n in shown:
        if columns[n].flex:
            widths[n] = max(0, min(widths[n], left))
    found = []
    for place, row in enumerate(table):
        line = Text(no_wrap=True)
        for n in shown:
            style = columns[n].style if place else "dim" if n else "bold"
            cell = cut(row[n], widths[n], signs)
            pad = " " * (widths[n] - cell_len(cell))
            line.append(
                pad + cell if columns[n].right else cell + pad,
                style=style if isinstance(style, str) else style[place - 1],
            )
            line.append(" " * GAP)
        line.truncate(width)
        line.rstrip()
        found.append(line)
    return found


def cut(text: str, width: int, signs: Signs) -> str:
    """Cut a text to at most `width` cells, with a mark where it is cut."""
    if cell_len(text) <= width:
        return text
    room = width - len(signs.more)
    return set_cell_size(text, room).rstrip() + signs.more if room > 0 else ""


def flow(items: Sequence[tuple[str, str]], width: int, most: int, signs: Signs) -> list[Text]:
    """Place (text, style) items on up to `most` lines, without those that do not fit."""
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
    done = min(width, round(share * width)) if share < 1 else width
    return Text.assemble((signs.full * done, "green"), (signs.empty * (width - done), "dim"))


def spark(values: Sequence[float], width: int, signs: Signs) -> str:
    """Draw a curve in one line; each position has the last of its values."""
    if len(values) < 2:
        return ""
    places = min(width, len(values))
    picked = [values[(place + 1) * len(values) // places - 1] for place in range(places)]
    low, high = min(picked), max(picked)
    # Halved, so that the difference of two values does not overflow.
    span, most = high / 2 - low / 2, len(signs.levels) - 1
    return "".join(
        signs.levels[round((value / 2 - low / 2) / span * most) if span else 0] for value in picked
    )
