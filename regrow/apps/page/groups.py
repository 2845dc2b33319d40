"""The rows of a table in groups, one page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def part(
    rows: Sequence[T],
    keys: Callable[[T], Iterable[str]] | None,
    order: Sequence[str],
    page: int,
    per_page: int,
) -> dict[str, Any]:
    """Return a page of the rows, in their order within each group: `groups`, each with its `title`
    (None: the table is not grouped), the `count` of its rows on all pages and its `rows` on this
    one; `page` and `pages`; and the positions `first` and `last` of its rows among all, from 1.

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
            groups.append({"title": title, "count": len(own), "rows": shown})
        before += len(own)
    first = start + 1 if count else 0
    return {"groups": groups, "page": page, "pages": pages, "first": first, "last": end}


def offered(values: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
    """Return the options of a filter: each value, and it with the number of rows that have it."""
    return [(value, f"{value} ({count:,})") for value, count in values]
