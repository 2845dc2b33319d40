"""Merging of the log's small objects, so that their number grows with the logarithm of the number
of segments.

Readers prefer merged objects and need none of the parts; the parts are deleted only after the
merged object is durable. So a crash at any point, or a fenced writer that still merges, leaves a
log that reads the same. Claims, and segments that do not verify, are fences: never merged, never
deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from regrow.infra.log.segments import PREFIX, Extent, Segment, cover, decode, extents
from regrow.tasks.ports.store import Missing, Store, created

MAX_BYTES = 8 << 20
"""Bytes from which an object is not merged any further: several are read into memory at a time."""

MAX_OBJECTS = 4096
"""Most objects that are merged at a time."""

READ_AHEAD = 64
"""Segments that are read at a time. Each object that holds some of them costs one request."""
READERS = 8


class Compaction:
    """Knows the log's objects, and which are due for merging. One per writer; thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[Extent] = set()
        self._fences: set[int] = set()
        self._full: set[Extent] = set()
        self._tidied = False
        self._state = threading.Lock()
        self._running = threading.Lock()

    def added(self, more: Iterable[Extent]) -> None:
        """Add objects to the known ones."""
        with self._state:
            self._known.update(more)

    def record_seen(self, segment: Segment) -> None:
        """Record that the writer saw a segment, so that a fence need not be read again later."""
        if segment.claim or segment.why:
            with self._state:
                self._fences.add(segment.number)

    def run(self, newest: int, fanout: int) -> int:
        """Merge the objects due among the segments before `newest`. Returns how many they were."""
        if fanout < 2:  # merging needs two objects
            raise ValueError(f"fanout {fanout}: at least 2")
        merged = 0
        with self._running:
            try:
                if not self._tidied:
                    self._tidy()
                while group := self._due(newest, fanout):
                    merged += self._merge(group)
            except Missing:
                # A fenced writer merges too. Its result is equally valid: list again.
                known = set(extents(self._store.list(PREFIX)))
                with self._state:
                    # Keep what the writer added since the list was made.
                    self._known = known | {
                        extent for extent in self._known if extent.last >= newest
                    }
                self._tidied = False
        return merged

    def _due(self, newest: int, fanout: int) -> list[Extent]:
        with self._state:
            chain, _ = cover(self._known, 0, newest)
            fences, full = set(self._fences), set(self._full)
        run: list[Extent] = []
        for extent in chain:
            fence = extent.span == 1 and extent.first in fences
            if not fence and extent not in full and extent.first < newest:
                run.append(extent)
                continue
            # A run that cannot grow any more becomes one object at once.
            group = run if (fence or extent in full) and len(run) > 1 else next_merge(run, fanout)
            if group:
                return group[:MAX_OBJECTS]
            run = []
        return []

    def _merge(self, group: Sequence[Extent]) -> int:
        """Merge adjacent objects into one. Returns how many were merged away; 0 if merging is
        impossible, and then the group is no longer due in this form.
        """
        parts: list[bytes] = []
        taken: list[Extent] = []
        size, last, met = 0, group[0].first - 1, False
        for extent, data in read_objects(self._store, group):
            if data is None:
                raise Missing(extent.key)
            segments = decode(data, extent)
            if extent.span > 1 and segments[-1].why:
                # A merged object that does not verify: its parts replace it, or readers report the
                # damage.
                met = True
                with self._state:
                    self._known.discard(extent)
            elif extent.span == 1 and (segments[0].claim or segments[0].why):
                met = True  # keep reading, to find all fences of the group at once
                self.record_seen(segments[0])
            parts += [data[s.start : s.end] for s in segments if s.number > last]
            last = extent.last
            taken.append(extent)
            size += len(data)
            if size >= MAX_BYTES:
                break
        if met:
            return 0
        target = Extent(group[0].first, last)
        if len(taken) > 1:
            self._publish(target, b"".join(parts))
            self._store.delete(extent.key for extent in taken)
        with self._state:
            if size >= MAX_BYTES:
                self._full.add(target)
            self._known.difference_update(taken)
            self._known.add(target)
        return len(taken) if len(taken) > 1 else 0

    def _publish(self, target: Extent, data: bytes) -> None:
        # Created before a crash, or by a fenced writer: the same bytes, unless it is torn.
        if not created(self._store, target.key, data):
            self._store.delete([target.key])
            self._store.create(target.key, data)

    def _tidy(self) -> None:
        """Delete the objects inside a merged object that verifies, as left by a late claim."""
        with self._state:
            known = sorted(self._known, key=lambda extent: (extent.first, -extent.last))
        inner: dict[Extent, list[Extent]] = {}
        holder: Extent | None = None
        for extent in known:
            if holder is not None and holder.holds(extent):
                inner.setdefault(holder, []).append(extent)
            else:
                holder = extent
        for holder, parts in inner.items():
            verifies = not decode(self._store.read(holder.key), holder)[-1].why
            if verifies:
                self._store.delete(part.key for part in parts)
            with self._state:
                self._known.difference_update(parts if verifies else [holder])
        self._tidied = True


def next_merge(run: list[Extent], fanout: int) -> list[Extent]:
    """Return the adjacent objects in `run` that are to become one object; empty if none are.

    Objects have levels: level 0 has fewer than `fanout` segments, level 1 fewer than `fanout`
    squared, and so on. `fanout` adjacent objects of one level are merged, together with the objects
    directly before them whose level is lower than the result's. So levels never rise along a run,
    and each level has fewer than `fanout` objects. A segment that is rewritten rises by one level:
    of n segments, each is rewritten at most log n times.
    """
    levels = [_level(extent.span, fanout) for extent in run]
    start = 0
    for _, same in groupby(levels):
        end = start + len(list(same))
        if end - start >= fanout:
            while start and levels[start - 1] < _level(
                run[end - 1].last - run[start].first + 1, fanout
            ):
                start -= 1
            return run[start:end]
        start = end
    return []


def _level(span: int, fanout: int) -> int:
    level = 0
    while span >= fanout:
        span //= fanout
        level += 1
    return level


def read_objects(store: Store, chain: Sequence[Extent]) -> Iterator[tuple[Extent, bytes | None]]:
    """Yield each object with its bytes, in order; None for one that is gone. Reads several at a
    time. While it is suspended no threads run: a reader may leave it to the garbage collector.
    """

    def read(extent: Extent) -> bytes | None:
        try:
            return store.read(extent.key)
        except Missing:
            return None

    if len(chain) < 4:  # too few for threads
        yield from ((extent, read(extent)) for extent in chain)
        return
    for batch in _batches(chain):
        with ThreadPoolExecutor(READERS) as pool:
            found = list(pool.map(read, batch))
        yield from zip(batch, found, strict=True)


def _batches(chain: Sequence[Extent]) -> Iterator[list[Extent]]:
    batch: list[Extent] = []
    size = 0
    for extent in chain:
        if batch and size + extent.span > READ_AHEAD:
            yield batch
            batch, size = [], 0
        batch.append(extent)
        size += extent.span
    if batch:
        yield batch
