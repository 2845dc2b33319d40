"""Stores in memory that fail or are out of reach, and damage to what is in a store. No test lives
here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from pathlib import Path

from regrow.tasks.ports.store import Store, Unavailable
from tests.memory_store import MemoryStore


def replace(store: Store, key: str, data: bytes) -> None:
    """Puts something else in an object's place."""
    store.delete([key])
    store.create(key, data)


def corrupt(store: Store, key: str) -> None:
    """Damages the end of an object."""
    replace(store, key, store.read(key)[:-3] + b"xxx")


class Faulty(MemoryStore):
    """Fails at chosen calls that change it: before they take effect, or after (the answer is
    lost).
    """

    def __init__(self) -> None:
        super().__init__()
        self.fail_before = self.fail_after = math.inf
        self.calls = 0

    def _call(self, name: str) -> bool:
        self.calls += 1
        if self.calls == self.fail_before:
            raise Unavailable(name, "network")
        return self.calls == self.fail_after

    def create(self, key: str, data: bytes | Path) -> None:
        lost = self._call(key)
        super().create(key, data)
        if lost:
            raise Unavailable(key, "network")

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        for name in keys:  # not all at once: a crash may come between two
            lost = self._call(name)
            super().delete([name])
            if lost:
                raise Unavailable(name, "network")

    def fail_next(self, *, took_effect: bool) -> None:
        self.calls = 0
        self.fail_before, self.fail_after = (math.inf, 1) if took_effect else (1, math.inf)


class Away(MemoryStore):
    """A store that is out of reach until `back` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.asked = threading.Event(), threading.Event()

    def create(self, key: str, data: bytes | Path) -> None:
        if not self.back.is_set():
            self.asked.set()
            raise Unavailable(key, "network")
        super().create(key, data)


class NoReads(MemoryStore):
    """Reads nothing."""

    def read(self, key: str) -> bytes:
        raise Unavailable(key, "no network")
