"""What running a trial needs from the outside, as small protocols; the adapters live in `infra/`.

No implementation and no import of a library lives here. Each port has at most five methods and one contract suite.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from regrow.tasks.errors import RegrowError


class StoreError(RegrowError):
    """A store did not do what it was asked. `key` names the object."""

    def __init__(self, key: str, *rest: str) -> None:
        super().__init__(key, *rest)  # all positional, so that it survives pickling
        self.key = key


class Exists(StoreError):
    """The object is there already, complete and durable; nothing was written."""

    def __str__(self) -> str:
        return f"{self.key} exists already; objects are written once"


class Missing(StoreError):
    """There is no such object."""

    def __str__(self) -> str:
        return f"{self.key} does not exist"


class Unavailable(StoreError):
    """The store failed (network, full disk, ...). Retry: whether a `create` took effect is unknown."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(key, why)
        self.why = why

    def __str__(self) -> str:
        return f"{self.key} is out of reach for now: {self.why}"


class Store(Protocol):
    """Durable write-once objects, by key. Safe to use from several threads and processes.

    A key is a relative posix path without empty, "." or ".." parts; any other raises ValueError. An adapter whose
    place can't be used at all (no permission, no such bucket) raises UserError, one that fails for now Unavailable.
    """

    def create(self, key: str, data: bytes | Path) -> None:
        """Create the object from bytes or a local file. On return it is durable; it is never visible half-written.

        Raises Exists when the key is taken. An adapter that retries by itself may raise it for its own first try:
        whoever must know the winner compares the content.
        """

    def read(self, key: str) -> bytes:
        """The object's bytes. Raises Missing."""

    def fetch(self, key: str, path: Path) -> None:
        """Stream the object to a local file, replacing it; its folder must exist. Raises Missing."""

    def list(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix` ("" for all), sorted by code point. Sees every create that returned."""

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        """Delete the objects in the order given, else (not `ordered`) in any, by fewer requests; missing ones are fine."""
