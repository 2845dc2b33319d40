"""Lays out rows of cells in a width: long titles are cut, then columns that do not fit go, the
least important first. The line of titles ends with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from regrow.show.views.names import shortened

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
class GridColumn:
    """How a column is shown.

    Attributes:
        style: one for all of its cells, or one for each.
        rank: order in which columns are dropped if space is short: higher first, 0 never.
        right: aligned to the right.
        flex: takes the remaining width, and is cut there.
        least: None: the title is shown whole; else the cells that it is cut to, if its values are
            no wider, where space is short.

    """

    title: str
    _: KW_ONLY
    style: str | Sequence[str] = ""
    rank: int = 0
    right: bool = False
    flex: bool = False
    least: int | None = None


Cell = str | tuple[str, str]
"""A text; or a text and a shorter one that is shown where the first does not fit."""


def lines(
    columns: Sequence[GridColumn],
    rows: Sequence[Sequence[Cell]],
    width: int,
    signs: Signs,
    more: int = 0,
) -> list[Text]:
    """Return a line of titles, the first one bold, and one for each row, which has a cell for each
    column; none is longer than `width`. Columns of empty cells are left out. `more`: columns that
    the caller has left out already.
    """
    shown = [
        n
        for n, column in enumerate(columns)
        if n == 0 or column.flex or any(_whole(r[n]) for r in rows)
    ]
    whole = [[column.title for column in columns], *([_whole(cell) for cell in r] for r in rows)]
    widths = {n: max(cell_len(row[n]) for row in whole) for n in shown}
    titles, rest = whole[0], _rest(more)

    def fits(flex: int) -> bool:
        taken = (min(widths[n], flex) if columns[n].flex else widths[n] for n in shown)
        count = GAP + len(rest) if rest and not columns[shown[-1]].flex else 0
        return sum(taken) + GAP * (len(shown) - 1) + count <= width

    if not fits(width):
        values = {n: max((cell_len(row[n]) for row in whole[1:]), default=0) for n in shown}
        short = [n for n in shown if columns[n].least is not None]
        most = [max(columns[n].least or 0, values[n]) for n in short]
        for n, title in zip(
            short, shortened([titles[n] for n in short], most, signs.more), strict=True
        ):
            titles[n], widths[n] = title, max(cell_len(title), values[n])
    while not fits(LEAST_FLEX) and any(columns[n].rank for n in shown):
        gone = max(reversed(shown), key=lambda n: columns[n].rank)
        shown.remove(gone)
        more += 1
        rest = _rest(more)
    left = width - sum(widths[n] + GAP for n in shown if not columns[n].flex)
    for n in shown:
        if columns[n].flex:
            widths[n] = max(0, min(widths[n], left))
    found = []
    for place, row in enumerate([titles, *rows]):
        line = Text(no_wrap=True)
        for n in shown:
            style = columns[n].style if place else "dim" if n else "bold"
            cell = _fitted(row[n], widths[n], signs)
            pad = " " * (widths[n] - cell_len(cell))
            line.append(
                pad + cell if columns[n].right else cell + pad,
                style=style if isinstance(style, str) else style[place - 1],
            )
            line.append(" " * GAP)
        line.truncate(width)
        line.rstrip()
        if not place and rest:
            line.truncate(max(0, width - GAP - len(rest)))
            line.append(f"{' ' * GAP}{rest}", style="dim")
            line.truncate(width)
        found.append(line)
    return found


def _rest(more: int) -> str:
    return f"+{more} more" if more else ""


def _whole(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _fitted(cell: Cell, width: int, signs: Signs) -> str:
    if not isinstance(cell, str):
        cell = cell[0] if cell_len(cell[0]) <= width else cell[1]
    return cut(cell, width, signs)


def cut(text: str, width: int, signs: Signs) -> str:
    """Cut a text to at most `width` cells, with a mark where it is cut."""
    if cell_len(text) <= width:
        return text
    room = width - len(signs.more)
    if room <= 0:
        return ""
    return set_cell_size(text, room).rstrip().removesuffix(signs.more) + signs.more


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
