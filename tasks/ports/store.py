"""The store port and its errors; the adapters are in `infra/`.

No adapter and no import of a library is here. Each port has at most five methods and one
contract suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from regrow.search.measured import Traffic
from regrow.tasks.errors import RegrowError


class StoreError(RegrowError):
    """A store operation failed. `key` names the object."""

    def __init__(self, key: str, *rest: str) -> None:
        super().__init__(key, *rest)  # all positional, so that it survives pickling
        self.key = key


class Exists(StoreError):
    """The object exists already, complete and durable; nothing was written."""

    def __str__(self) -> str:
        return f"{self.key} exists already; objects are written once"


class Missing(StoreError):
    """The object does not exist."""

    def __str__(self) -> str:
        return f"{self.key} does not exist"


class Unavailable(StoreError):
    """The store failed (network, full disk, ...). Retry: a `create` may have taken effect."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(key, why)
        self.why = why

    def __str__(self) -> str:
        return f"{self.key or 'the state'} is out of reach for now: {self.why}"


class Store(Protocol):
    """Durable write-once objects, by key. Safe to use from several threads and processes.

    A key is a relative posix path without empty, "." or ".." parts; any other raises ValueError. An
    adapter raises UserError if its location can never be used (no permission, no such bucket), and
    Unavailable if it fails temporarily. Objects made from files may have any size, as files of
    checkpoints: `create` and `fetch` do not hold them in memory. Those below `CONFIDENTIAL`
    (`infra/stores/keys.py`) hold secrets.
    """

    def create(self, key: str, data: bytes | Path) -> None:
        """Create the object from bytes or a local file. On return it is durable; it is never
        visible half-written.

        Raises Exists if the key is taken. An adapter that retries may raise it for its own first
        try: a caller that must know the winner compares the content.
        """

    def read(self, key: str) -> bytes:
        """Return the object's bytes. Raises Missing."""

    def fetch(self, key: str, path: Path) -> None:
        """Stream the object to a local file, replacing it; its folder exists. Raises Missing."""

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix` ("" for all), sorted by code point. Includes
        every create that has returned.
        """

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        """Delete the objects in the given order, or in any order with fewer requests
        (`ordered=False`). Missing objects are ignored.
        """


def pop_traffic(store: Store) -> Traffic | None:
    """Return what this process asked of a store since the last call; None for nothing, or if the
    store does not count it, as a folder.
    """
    take: Callable[[], Traffic] | None = getattr(store, "pop_traffic", None)
    return (take() or None) if take is not None else None


def created(store: Store, key: str, data: bytes) -> bool:
    """Create the object, and return whether the key has these bytes: also by an earlier try whose
    answer was lost. Raises Missing if it was there and is gone.
    """
    try:
        store.create(key, data)
    except Exists:
        return store.read(key) == data
    return True
