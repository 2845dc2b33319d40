"""Long names as people read them: one cut for terminals, pages, reports and figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from rich.cells import cell_len, set_cell_size

LONGEST = 12
"""Cells that are left of a name where there is no room for the whole."""
_KEPT = 3
"""Characters that a name keeps that loses a shared beginning."""
HEADING = 24
"""Cells of a name above a column of a page, which shows the whole under the pointer."""


def middle(name: str, most: int, mark: str = "…") -> str:
    """Cut a long name in its middle to `most` cells: both ends tell more than the beginning."""
    if cell_len(name) <= most:
        return name
    room = most - cell_len(mark)
    if room < 0:
        return ""
    head = set_cell_size(name, room // 2).rstrip()
    tail = name
    while cell_len(tail) > room - cell_len(head):
        tail = tail[1:]
    return f"{head}{mark}{tail}"


def apart(names: Sequence[str], most: Sequence[int], mark: str = "…") -> list[str]:
    """Cut each name to its cells in `most`; different names stay different.

    Names that would look the same lose the beginning that they share; if they still do, they are
    cut less.
    """
    cut = [middle(name, cells, mark) for name, cells in zip(names, most, strict=True)]
    for alike in _alike(names, cut):
        same = [names[place] for place in alike]
        shared = max(0, min(_shared(same), min(map(len, same)) - _KEPT))
        for place in alike:
            cut[place] = middle(f"{mark}{names[place][shared:]}", most[place], mark)
    wider = list(most)
    while again := _alike(names, cut):
        for alike in again:
            for place in alike:
                wider[place] += 1
                cut[place] = middle(names[place], wider[place], mark)
    return cut


def _shared(names: Sequence[str]) -> int:
    """Return how many characters all names begin with."""
    return sum(
        1 for _ in takewhile(lambda letters: len({*letters}) == 1, zip(*names, strict=False))
    )


def _alike(names: Sequence[str], cut: Sequence[str]) -> list[list[int]]:
    """Return the places of different names whose cuts are the same."""
    found: dict[str, list[int]] = {}
    for place, one in enumerate(cut):
        found.setdefault(one, []).append(place)
    return [places for places in found.values() if len({names[place] for place in places}) > 1]


def headings(
    names: Sequence[str],
    columns: Sequence[Sequence[str]],
    longest: int = LONGEST,
    mark: str = "…",
) -> list[str]:
    """Cut the names above columns of values to `longest` cells, or to the width of the values if
    that is more.
    """
    most = [max([longest, *map(cell_len, column)]) for column in columns]
    return apart(names, most, mark)
