"""The media of a trial that count, listed from the store: without what was superseded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from regrow.search.history import TrialRecord
from regrow.search.numbers import readable
from regrow.tasks.media.items import Item, latest, listed
from regrow.tasks.ports.store import Store
from regrow.tasks.process.disk import size as in_words

TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Types of the images that a page shows, by their suffixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a page shows under a name.

    Attributes:
        name: the name.
        about: the newest item in words.
        picture: address of an image; None if it is none.
        small: whether the image is enlarged.
        plot: name under which the page's script finds a figure of Plotly's; None if it is none.
        text: beginning of a text; None if it is none.
        columns: names of a table's columns.
        rows: first rows of a table; None if it is none.
        more: what is left out of the text or the table, "" for nothing.
        height: of a figure of Plotly's, in pixels; None: the script knows it.
        link: address of the item; None for none.
        opens: whether a browser shows what is behind `link`.
        earlier: steps of earlier items, and their addresses.

    """

    name: str
    about: str
    picture: str | None = None
    small: bool = False
    plot: str | None = None
    text: str | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] | None = None
    more: str = ""
    height: float | None = None
    link: str | None = None
    opens: bool = False
    earlier: Sequence[tuple[int, str]] = ()


SMALL = 4000
"""Bytes of an image that is enlarged: it has few pixels, or little in them."""
MOST_PREVIEWED = 1_000_000
"""Bytes of a text or a table of which a page shows the beginning: it is read as a whole."""
MOST_TEXT = 4000
"""Characters of a text that a page shows."""
MOST_ROWS, MOST_COLUMNS, MOST_CELL = 20, 20, 200
"""Rows and columns of a table that a page shows, and characters of a cell."""


class _Figure(msgspec.Struct, frozen=True):
    data: list[dict[str, Any]]
    layout: dict[str, Any]


class LoggedTable(msgspec.Struct, frozen=True):
    """A logged table."""

    columns: list[str]
    data: list[list[bool | int | float | str | None]]


def of_trial(store: Store, trial: TrialRecord) -> list[Item]:
    """Return the items of a trial by name and step. Raises Unavailable."""
    begun = [a for a in trial.attempts if a.t_began is not None]

    def counts(item: Item) -> bool:
        return all(a.from_step >= item.step for a in begun if a.number > item.attempt)

    found = latest(filter(counts, listed(store, trial.number)))
    return sorted(found.values(), key=lambda item: (item.name, item.step))


def by_name(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Group items, which are in order, by their names."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.name, []).append(item)
    return found


def is_picture(item: Item) -> bool:
    """Return whether a page can show the item as an image."""
    return item.kind in ("image", "figure") and item.suffix in TYPES


def is_previewed(item: Item) -> bool:
    """Return whether a page shows the beginning of the item: of a text or a table."""
    return item.kind in ("text", "table") and item.size <= MOST_PREVIEWED


def is_plotly(item: Item) -> bool:
    """Return whether the item is a figure that Plotly's script draws."""
    return item.kind == "figure" and item.suffix == ".json"


def table(data: bytes) -> LoggedTable | None:
    """Return a logged table; None if the bytes are none."""
    try:
        return msgspec.json.decode(data, type=LoggedTable)
    except msgspec.MsgspecError:
        return None


def preview(item: Item, data: bytes) -> dict[str, Any]:
    """Return the fields of a Card that show a text or a table; none for other kinds."""
    if item.kind == "text":
        text = data.decode(errors="replace")
        left = len(text) - MOST_TEXT
        return {"text": text[:MOST_TEXT], "more": f"{left:,} more characters" if left > 0 else ""}
    found = table(data) if item.kind == "table" else None
    if found is None:
        return {}
    rows, columns = len(found.data) - MOST_ROWS, len(found.columns) - MOST_COLUMNS
    left_out = [f"{rows:,} more rows"] * (rows > 0) + [f"{columns:,} more columns"] * (columns > 0)
    return {
        "columns": [_cell(name) for name in found.columns[:MOST_COLUMNS]],
        "rows": [[_cell(cell) for cell in row[:MOST_COLUMNS]] for row in found.data[:MOST_ROWS]],
        "more": " and ".join(left_out),
    }


def plotted(data: bytes) -> dict[str, Any] | None:
    """Return a logged figure of Plotly's as its script takes it; None if the bytes are none."""
    try:
        figure = msgspec.json.decode(data, type=_Figure)
    except msgspec.MsgspecError:
        return None
    if "title" in figure.layout:  # our own figures have none, and no room for one
        figure.layout.setdefault("margin", {"t": 60})
    height = figure.layout.get("height")
    fits = isinstance(height, int | float) and 100 <= height <= 2000
    return {
        "figure": {"data": figure.data, "layout": figure.layout},
        "height": height if fits else 420,
    }


def about(item: Item) -> str:
    """Describe an item in some words: image, 12 kB, step 3."""
    return f"{item.kind}, {in_words(item.size)}, step {item.step}"


def file_name(item: Item) -> str:
    """Return the name under which a browser saves an item."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", item.name).strip("-") or item.kind
    return f"{name}-step-{item.step}{item.suffix}"


def _cell(value: bool | float | str | None) -> str:
    if value is None:
        return ""
    text = readable(value) if isinstance(value, float) else str(value)
    return text if len(text) <= MOST_CELL else f"{text[:MOST_CELL]}…"


def view(item: Item, address: str) -> dict[str, Any]:
    """Return an item as `--json` prints it. `address`: where its object is."""
    return {
        "name": item.name,
        "step": item.step,
        "kind": item.kind,
        "bytes": item.size,
        "attempt": item.attempt,
        "object": address,
    }
