"""Keys of logged media in an experiment's state: one object for each item, and no index.

A key, `media/<trial>/<attempt>/<count>-<step>-<kind>-<size>-<name><suffix>`, tells all about its
item. So the media of a trial are listed by one request that reads nothing. Only the standard
library is imported, as programs with another interpreter log media, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import quote, unquote

from regrow.tasks.errors import ReportError

if TYPE_CHECKING:
    from regrow.tasks.ports.store import Store

MOST_BYTES = 10_000_000
"""Bytes of an item at most."""
MOST_ITEMS = 1000
"""Items of a trial at most."""
MOST_TRIAL_BYTES = 200_000_000
"""Bytes of all items of a trial at most."""
_MOST_NAME, _MOST_QUOTED = 100, 180
"""Characters of a name at most, and characters of it within a key, whose parts have 255 bytes."""

Kind = Literal["image", "table", "figure", "text", "file"]
_KEY = re.compile(
    rf"media/(\d{{1,9}})/(\d{{1,9}})/(\d{{1,9}})-(\d{{1,9}})-({'|'.join(get_args(Kind))})-(\d{{1,9}})"
    r"-([A-Za-z0-9_=-]{1,180})(\.[a-z0-9]{1,16})?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item that a trial logged.

    Attributes:
        trial: number of the trial.
        attempt: number of the attempt that logged it.
        count: its number among the items of the attempt, from 1. Of the same name and step, the
            last one counts.
        step: the trial's step at that time.
        kind: what was logged.
        size: bytes.
        name: the name that the training gave it.
        suffix: of a file with its content, such as ".png"; may be empty.

    """

    trial: int
    attempt: int
    count: int
    step: int
    kind: Kind
    size: int
    name: str
    suffix: str

    @property
    def key(self) -> str:
        """Key of the item in the experiment's store."""
        return f"{prefix(self.trial)}{self.attempt}/{self.file}"

    @property
    def file(self) -> str:
        """Last part of the key."""
        about = f"{self.count:06d}-{self.step:09d}-{self.kind}-{self.size}"
        return f"{about}-{_quoted(self.name)}{self.suffix}"


def prefix(trial: int) -> str:
    """Return the prefix of the keys of a trial's media."""
    return f"media/{trial}/"


def parsed(key: str) -> Item | None:
    """Return the item of a key; None if it is the key of no item."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    trial, attempt, count, step, kind, size, name, suffix = found.groups()
    item = Item(
        trial=int(trial),
        attempt=int(attempt),
        count=int(count),
        step=int(step),
        kind=kind,  # type: ignore[arg-type]  # one of the kinds, by the expression
        size=int(size),
        name=unquote(name.replace("=", "%"), errors="replace"),
        suffix=suffix or "",
    )
    return item if item.key == key else None


def listed(store: Store, trial: int) -> list[Item]:
    """Return all items of a trial, also superseded ones, oldest first. Raises Unavailable."""
    found = [parsed(key) for key in store.list(prefix(trial))]
    items = [item for item in found if item is not None]
    return sorted(items, key=lambda item: (item.attempt, item.count))


def latest(items: Iterable[Item]) -> dict[tuple[str, int], Item]:
    """Return the last item of each name and step, of items in the order of `listed`."""
    return {(item.name, item.step): item for item in items}


def checked(name: object) -> str:
    """Return the name of an item. Raises ReportError for one that cannot be used."""
    if not isinstance(name, str) or not name.strip():
        raise ReportError(f"media: {name!r} is no name; name what is logged, such as 'confusion'")
    parts = name.split("/")
    if any(part.strip() in ("", ".", "..") for part in parts) or not name.isprintable():
        raise ReportError(
            f"media: {name!r} is no name; write printable characters, and a slash only between two"
            " parts"
        )
    if len(name) > _MOST_NAME or len(_quoted(name)) > _MOST_QUOTED:
        raise ReportError(
            f"media: the name {name[:40]!r}... has {len(name)} characters; at most {_MOST_NAME} are"
            " possible, fewer with other than Latin letters"
        )
    return name


def _quoted(name: str) -> str:
    """Return a name as a part of a key: "=" and two digits for each byte that is no letter, digit,
    "_" or "-".
    """
    quoted = quote(name, safe="", errors="replace")
    return quoted.replace("%", "=").replace(".", "=2E").replace("~", "=7E")
