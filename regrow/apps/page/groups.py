"""The rows of a table in groups, one page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup(Generic[T]):
    """Rows below one title.

    Attributes:
        title: None: the table is not grouped.
        count: number of its rows on all pages.
        rows: those on this page.

    """

    title: str | None
    count: int
    rows: Sequence[T]

    def with_rows(self, rows: Sequence[Any]) -> RowGroup[Any]:
        """Return the group with these in place of its rows."""
        return RowGroup(title=self.title, count=self.count, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage(Generic[T]):
    """A page of a table: its groups, and the positions of its rows among all, from 1."""

    groups: Sequence[RowGroup[T]]
    page: int
    pages: int
    first: int
    last: int


def part(
    rows: Sequence[T],
    keys: Callable[[T], Iterable[str]] | None,
    order: Sequence[str],
    page: int,
    per_page: int,
) -> TablePage[T]:
    """Return a page of the rows, in their order within each group.

    Args:
        rows: all of them.
        keys: returns the titles of the groups of a row; None: no groups.
        order: the titles in their order; others come after them, by name.
        page: from 1; one beyond the last is the last one.
        per_page: maximum rows of a page.

    """
    found: dict[str | None, list[T]] = {}
    for row in rows:
        for key in (None,) if keys is None else keys(row):
            found.setdefault(key, []).append(row)
    place = {title: n for n, title in enumerate(order)}
    titles = sorted(found, key=lambda title: (place.get(title or "", len(place)), title or ""))
    count = sum(map(len, found.values()))
    pages = max(1, -(-count // per_page))
    page = min(max(1, page), pages)
    start, end = (page - 1) * per_page, min(page * per_page, count)
    groups, before = [], 0
    for title in titles:
        own = found[title]
        if shown := own[max(0, start - before) : max(0, end - before)]:
            groups.append(RowGroup(title=title, count=len(own), rows=shown))
        before += len(own)
    return TablePage(
        groups=groups, page=page, pages=pages, first=start + 1 if count else 0, last=end
    )


def offered(values: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
    """Return the options of a filter: each value, and it with the number of rows that have it."""
    return [(value, f"{value} ({count:,})") for value, count in values]
