"""Logs to write, read and harm. No test lives here."""

from __future__ import annotations

from regrow.infra.log.log import Log
from regrow.infra.log.segments import Extent
from tests.memory_store import MemoryStore

Lines = list[tuple[int, list[bytes]]]


def key(first: int, last: int | None = None) -> str:
    return Extent(first, last or first).key


def writer(store: MemoryStore) -> Log:
    log = Log.open(store)
    log.claim([b'{"event":"opened"}'])
    return log


def filled(store: MemoryStore, segments: int) -> Log:
    log = writer(store)
    for i in range(2, segments + 1):
        log.append([b'{"i":%d}' % i])
    return log


def read(store: MemoryStore, after: int = 0) -> Lines:
    return list(Log.read(store, after))
