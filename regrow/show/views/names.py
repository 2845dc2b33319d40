"""Long names as people read them: one cut for terminals, pages, reports and figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from rich.cells import cell_len, set_cell_size

LONGEST = 12
"""Cells that are left of a name where there is no room for the whole."""
_KEPT = 3
"""Characters that are left of a name without the beginning that it shares with others."""
_BEGINS = 4
"""Cells that are left of a shared beginning where names would look the same without it."""
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


def shortened(names: Sequence[str], most: Sequence[int], mark: str = "…") -> list[str]:
    """Cut each name to its cells in `most`; different names stay different.

    Names that would look the same lose the beginning that they share; if they still do, they keep
    the first characters of it, and are cut less.
    """
    cells = list(most)
    cut = [middle(name, width, mark) for name, width in zip(names, cells, strict=True)]
    begins = 0
    while alike := _alike(names, cut):
        for places in alike:
            same = [names[place] for place in places]
            shared = max(
                0,
                min(
                    sum(
                        1
                        for _ in takewhile(
                            lambda letters: len({*letters}) == 1, zip(*same, strict=False)
                        )
                    ),
                    min(map(len, same)) - _KEPT,
                ),
            )
            for place in places:
                cut[place] = _cut(names[place], cells[place], shared, begins, mark)
                cells[place] += begins > 0
        begins = _BEGINS
    return cut


def _cut(name: str, most: int, shared: int, begins: int, mark: str) -> str:
    """Cut a name of which the first `shared` characters tell little: `begins` are left of them."""
    if cell_len(name) <= most or shared <= begins:
        return middle(name, most, mark)
    head = set_cell_size(name, begins).rstrip()
    return head + middle(mark + name[shared:], most - cell_len(head), mark)


def _alike(names: Sequence[str], cut: Sequence[str]) -> list[list[int]]:
    """Return the places of different names whose cuts are the same."""
    found: dict[str, list[int]] = {}
    for place, one in enumerate(cut):
        found.setdefault(one, []).append(place)
    return [places for places in found.values() if len({names[place] for place in places}) > 1]


def headings(names: Sequence[str], columns: Sequence[Sequence[str]]) -> list[str]:
    """Cut the names above columns of values to LONGEST cells, or to the width of the values if that
    is more.
    """
    return shortened(names, [max([LONGEST, *map(cell_len, column)]) for column in columns])
