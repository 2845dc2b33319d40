"""The media of a trial that count, listed from the store: without what was superseded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from regrow.search.history import TrialRecord
from regrow.tasks.media.items import Item, latest, listed
from regrow.tasks.ports.store import Store

TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Types of the images that a page shows, by their suffixes."""


class Table(msgspec.Struct, frozen=True):
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


def table(data: bytes) -> Table | None:
    """Return a logged table; None if the bytes are none."""
    try:
        return msgspec.json.decode(data, type=Table)
    except msgspec.MsgspecError:
        return None


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
