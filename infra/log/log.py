"""The append-only log of an experiment: numbered segments, each created only if its number is free.

Two writers cannot both create segment N, so the loser knows that it is superseded and stops. The
meaning of the lines is not known here. The bytes of a segment are in `segments.py`; merging small
segments is in `compaction.py`.

Why a fenced writer ("zombie") always finds out, even after compaction: a writer's first write is a
claim, made at the end of the log, and its later writes follow without gaps. So the number that a
zombie tries next is either free or holds its successor's claim, and claims are never merged away.
After writing its claim, a writer lists the log once more: it may have slept since it opened the
log, while another writer wrote that number and merged it away.

Numbers have no gaps, so a missing part is noticed, except at the end. The end is proved where the
log was closed: a seal names the last segment and holds the hash of its lines. A log that was
continued is longer than its seals. A log without a seal, from an earlier version or from a writer
that was killed before sealing, ends at its last object.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from regrow.infra.log.compaction import Compaction, read_objects
from regrow.infra.log.segments import (
    PREFIX,
    Extent,
    Segment,
    cover,
    decode,
    encode,
    extents,
    last_of,
    seal_key,
    sealed,
    seals,
)
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports.store import Exists, Missing, Store, created

RELISTS = 10
"""How often to list again, without progress, when objects were merged while a list was made."""

CACHE_BYTES = 8 << 20
"""Bytes of the newest lines that `since` serves without reading the store."""
ANSWER_BYTES = 4 << 20
"""Size in bytes at which an answer to a follower is full. The rest comes with the next one."""
Segments = list[tuple[int, list[bytes]]]
"""(number, lines) of each segment, in order."""


def full(segments: Segments) -> bool:
    """Return whether an answer was cut off, so that the caller can ask for more at once."""
    return sum(len(line) for _, lines in segments for line in lines) >= ANSWER_BYTES


def first_of(segments: Iterable[tuple[int, list[bytes]]]) -> Segments:
    """Return the first segments, as many as fit one answer."""
    found, size = Segments(), 0
    for number, lines in segments:
        found.append((number, lines))
        size += sum(map(len, lines))
        if size >= ANSWER_BYTES:
            break
    return found


class CorruptLog(RegrowError):
    """A required part of the log is damaged or missing. Restore it from a backup, or give it up."""

    def __init__(self, key: str, why: str, place: str = "") -> None:
        super().__init__(key, why, place)
        self.key, self.why, self.place = key, why, place

    def __str__(self) -> str:
        root, _, name = self.place.rpartition("/")
        whose = f" of experiment {name!r} in {root}" if root else ""
        return f"the log{whose} is damaged at {self.key}: {self.why}"


class Contradiction(CorruptLog):
    """A line of the log, counted from 1, is intact, but its event cannot follow those before it."""

    def __init__(
        self, key: str, why: str, place: str = "", segment: int = 0, line: int = 0
    ) -> None:
        super().__init__(key, why, place)
        self.args = key, why, place, segment, line
        self.segment, self.line = segment, line

    def __str__(self) -> str:
        return (
            f"{super().__str__()}; what is before can be read, but the experiment cannot continue:"
            " start it under another name"
        )


class Superseded(RegrowError):
    """Another writer took over the log at segment `number`: this one must stop and never write."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"another writer took the log over at segment {self.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A torn last segment: only its first `kept` lines count."""

    key: str
    kept: int
    why: str


def _warn(cut: Cut) -> None:
    logging.getLogger(__name__).warning(
        "%s: %s; kept its first %d lines", cut.key, cut.why, cut.kept
    )


class Log:
    """A writer's view of the log. Safe to use from several threads."""

    def __init__(self, store: Store, tail: Segment | None, cut: Cut | None) -> None:
        self.cut = cut
        """What was cut off the last segment when the log was opened; None: nothing."""
        self._store = store
        self._writer = uuid.uuid4().hex
        self._last = tail.number if tail else 0
        self._cache: deque[Segment] = deque([tail] if tail else [])
        self._cached = sum(map(len, tail.lines)) if tail else 0  # bytes
        self._claimed = False
        self._compaction = Compaction(store)
        if tail:
            self._compaction.record_seen(tail)
        self._unsettled: bytes | None = None
        self._superseded: int | None = None
        self._writing = threading.Lock()
        self._state = threading.Lock()

    @classmethod
    def open(cls, store: Store) -> Log:
        """Open the log in its current state, empty if there is none. Raises CorruptLog if its last
        segment has more damage than a torn tail.
        """
        with _of(store):
            last = last_of(store.list(PREFIX))
            newest = deque(_scan(store, after=last - 1), maxlen=1) if last else ()
            for key, tail in newest:
                return cls(store, tail, _cut(key, tail) if tail.why else None)
        return cls(store, None, None)

    @staticmethod
    def read(
        store: Store, after: int = 0, on_cut: Callable[[Cut], None] = _warn
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (number, lines) of the segments after `after`, in order, for a reader that does not
        write.

        A torn last segment is cut off and reported to `on_cut`; a reader that continues from there
        must read that segment again. Raises CorruptLog for any other damage, when the iteration
        reaches it.
        """
        with _of(store):
            yield from _settle(_scan(store, after), on_cut)

    @staticmethod
    def proven(store: Store) -> int:
        """Return the segment at which the log was last closed, 0 if its end cannot be proved.
        Raises CorruptLog if a segment at which the log was closed is missing or has changed since.
        """
        with _of(store):
            numbers = seals(keys := store.list(PREFIX))
            for number in numbers:
                before = number + 2 if number < last_of(keys) else None
                lines = next(lines for _, lines in _settle(_scan(store, number - 1, before)))
                seal = store.read(seal_key(number))
                # A seal that is cut short was left by a writer that was killed while sealing. It
                # still proves that the segment existed.
                if seal.endswith(b"\n") and seal != sealed(number, lines):
                    raise CorruptLog(
                        Extent(number, number).key,
                        "it is not what it was when the log was closed with it",
                    )
            return numbers[-1] if numbers else 0

    @property
    def last(self) -> int:
        """Number of the newest segment that this writer knows, 0 for none."""
        return self._last

    def claim(self, lines: Sequence[bytes]) -> int:
        """Take over the log by the first write: like `append`, and fence off earlier writers."""
        with self._writing:
            number, segment = self._create(lines, claim=True)
            known = extents(self._store.list(PREFIX))
            if any(extent.first <= number <= extent.last and extent.span > 1 for extent in known):
                self._superseded = number
                raise Superseded(number)
            self._compaction.added(known)
            self._claimed = True
            self._commit(segment)
            return number

    def append(self, lines: Sequence[bytes]) -> int:
        """Write the lines (without line ends) as one segment and return its number. The lines are
        durable on return.

        Raises Superseded if another writer took over, now and on every later call. After any other
        error it is unknown whether the lines were written: call again with the same lines, which
        writes them once. Other lines are refused.
        """
        with self._writing:
            self._refuse()
            if not self._claimed:
                raise RuntimeError("claim the log before appending to it")
            if not lines:
                raise ValueError("nothing to append")
            number, segment = self._create(lines, claim=False)
            self._commit(segment)
            return number

    def seal(self) -> None:
        """Write the seal that proves where the log ends: without its last segment it is damaged."""
        with self._writing:
            self._refuse()
            tail = self._cache[-1]
            with suppress(Exists):  # an earlier coordinator sealed it already
                self._store.create(seal_key(tail.number), sealed(tail.number, tail.lines))

    def raise_if_superseded(self) -> None:
        """Raise Superseded if another writer has taken over, which only a write shows otherwise."""
        with self._writing:
            self._refuse()
            if self._unsettled is not None:
                return
            key = Extent(self._last + 1, self._last + 1).key
            try:
                # The successor's claim has this number, and is never merged away.
                self._store.read(key)
            except Missing:
                return
            self._superseded = self._last + 1
            raise Superseded(self._superseded)

    def since(self, number: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (number, lines) of the segments after `number` that this writer knows, in order.
        Recent ones come from memory.

        Raises Superseded if this writer is superseded, CorruptLog as `read` does.
        """
        self._refuse()
        with self._state:
            cached = [segment for segment in self._cache if segment.number > number]
            oldest = self._cache[0] if self._cache else None
        if oldest is not None and number + 1 < oldest.number:
            with _of(self._store):
                yield from _settle(self._seen(number, oldest.number), following=oldest)
        yield from ((segment.number, segment.lines) for segment in cached)

    def answer(self, number: int) -> Segments:
        """Return the first segments of `since(number)`, as many as fit. Raises as `since` does."""
        return first_of(self.since(number))

    def compact(self, min_segments: int = 64) -> int:
        """Merge small objects once `min_segments` of the same size are adjacent. Cheap when there
        is nothing to do.

        Returns how many objects were merged away. May run while another thread appends. Raises
        Superseded if this writer is superseded.
        """
        self._refuse()
        if not self._claimed:
            raise RuntimeError("claim the log before compacting it")
        return self._compaction.run(newest=self._last, fanout=min_segments)

    def _refuse(self) -> None:
        if self._superseded is not None:
            raise Superseded(self._superseded)

    def _create(self, lines: Sequence[bytes], claim: bool) -> tuple[int, Segment]:
        self._refuse()
        number = self._last + 1
        kept = self.cut.kept if self.cut and not self._claimed else None
        data = encode(number, lines, writer=self._writer, claim=claim, kept=kept)
        if self._unsettled not in (None, data):
            raise RuntimeError(
                "the write before failed and may have taken effect: repeat it, with the same lines"
            )
        self._unsettled = data
        key = Extent(number, number).key
        try:
            # It may be there and our own: a store's client repeats a request whose answer was lost.
            own = created(self._store, key, data)
        except Missing:
            own = False
        if not own:
            self._superseded = number
            raise Superseded(number)
        return number, Segment(number, list(lines), claim, kept)

    def _seen(self, after: int, before: int) -> Iterator[tuple[str, Segment]]:
        for key, segment in _scan(self._store, after, before):
            self._compaction.record_seen(segment)
            yield key, segment

    def _commit(self, segment: Segment) -> None:
        self._compaction.record_seen(segment)
        self._compaction.added([Extent(segment.number, segment.number)])
        with self._state:
            self._unsettled = None
            self._last = segment.number
            self._cache.append(segment)
            self._cached += sum(map(len, segment.lines))
            while self._cached > CACHE_BYTES and len(self._cache) > 1:
                self._cached -= sum(map(len, self._cache.popleft().lines))


def contradiction(store: Store, segment: int, line: int, why: object) -> Contradiction:
    """Return the error for a line (counted from 1), naming the object that holds it."""
    holders = [
        extent for extent in extents(store.list(PREFIX)) if extent.first <= segment <= extent.last
    ]
    key = min(holders, key=lambda extent: extent.span, default=Extent(segment, segment)).key
    return Contradiction(key, f"segment {segment}, line {line}: {why}", str(store), segment, line)


@contextmanager
def _of(store: Store) -> Iterator[None]:
    """Add the store's address to a CorruptLog error: a user has several experiments."""
    try:
        yield
    except CorruptLog as damaged:
        raise CorruptLog(damaged.key, damaged.why, str(store)) from None


def _cut(key: str, segment: Segment) -> Cut:
    """Return what to cut off a damaged last segment. Raises CorruptLog if that is not its tail."""
    if not segment.torn:
        raise CorruptLog(key, segment.why)
    return Cut(key=key, kept=len(segment.lines), why=segment.why)


def _settle(
    scan: Iterable[tuple[str, Segment]],
    on_cut: Callable[[Cut], None] = _warn,
    following: Segment | None = None,
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of each segment that count, which only the next segment's `kept` tells.
    `following`: the segment after the scan; None: the scan ends at the end of the log.
    """
    held: tuple[str, Segment] | None = None
    for key, segment in scan:
        if held:
            yield _settled(*held, segment.kept)
        held = key, segment
    if held is None:
        return
    key, segment = held
    if following is not None:
        yield _settled(key, segment, following.kept)
        return
    if segment.why:
        on_cut(_cut(key, segment))
    yield segment.number, segment.lines


def _settled(key: str, segment: Segment, kept: int | None) -> tuple[int, list[bytes]]:
    if kept is None and segment.why:
        raise CorruptLog(key, segment.why)
    if kept is not None and kept > len(segment.lines):
        raise CorruptLog(key, f"{kept} of its lines count, but {segment.why or 'it has fewer'}")
    return segment.number, segment.lines[:kept]


def _scan(store: Store, after: int, before: int | None = None) -> Iterator[tuple[str, Segment]]:
    """Yield the raw segments after `after` (and before `before`), each with the key of its object.

    Compaction may run at the same time: when an object vanishes between listing and reading, the
    log is listed again.
    """
    # Merged objects that do not verify. Their parts may still exist.
    damaged: dict[Extent, str] = {}
    keys: list[str] = []
    without_progress = 0
    while without_progress < RELISTS:
        keys = store.list(PREFIX)
        known, end = extents(keys), before - 1 if before else last_of(keys)
        chain, hole = cover((extent for extent in known if extent not in damaged), after, end)
        reached, whole = after, hole is None
        for extent, data in read_objects(store, chain):
            segments = decode(data, extent) if data is not None else []
            if extent.span > 1 and segments and segments[-1].why:
                damaged[extent] = segments[-1].why
                segments = []
            if not segments:
                whole = False
                break
            for segment in segments:
                if after < segment.number <= end:
                    after = segment.number
                    # A sealed segment was whole, so no writer died while writing it.
                    if segment.torn and segment.number in seals(keys):
                        segment = segment._replace(torn=False)  # noqa: PLW2901 - the same segment, without `torn`
                    yield extent.key, segment
        if whole:
            return
        without_progress = 0 if after > reached else without_progress + 1
    for extent, why in damaged.items():
        if extent.first <= after + 1 <= extent.last:
            raise CorruptLog(extent.key, why)
    closed = max(seals(keys), default=0)
    why = "it is missing"
    if closed > after:
        why += f", and the log was closed with segment {closed} ({seal_key(closed)})"
    raise CorruptLog(Extent(after + 1, after + 1).key, why)
