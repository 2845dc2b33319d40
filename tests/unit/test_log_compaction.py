"""Compaction: the same log in few objects, whenever it is interrupted and whoever reads
meanwhile.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.infra.log.compaction import next_merge
from regrow.infra.log.log import Log
from regrow.infra.log.segments import Extent
from regrow.tasks.ports.store import Unavailable
from tests.memory_store import MemoryStore
from tests.unit.logged import filled, key, read, writer
from tests.unit.stores import Faulty


def test_a_crash_at_any_point_of_compaction_leaves_the_same_log_which_compacts_again() -> None:
    point = 0
    while True:
        point += 1
        store = Faulty()
        log = filled(store, 20)
        expected = read(store)
        store.calls, store.fail_after = 0, point
        try:
            log.compact(4)
        except Unavailable:
            assert read(store) == expected
            store.fail_after = math.inf
            successor = writer(store)
            successor.compact(4)
            assert read(store) == [*expected, (21, [b'{"event":"opened"}'])]
            assert len(store.list("log/")) == 3  # claim, everything between, claim
            continue
        break
    assert point == 1 + 1 + 18  # one merged object, then each part


def test_overlapping_objects_of_two_writers_become_one_with_each_segment_once() -> None:
    store = MemoryStore()
    filled(store, 12)
    expected = read(store)
    for first, last in ((2, 6), (4, 9)):
        parts = (store.read(key(n)) for n in range(first, last + 1))
        store.create(key(first, last), b"".join(parts))
    store.delete([key(n) for n in range(2, 10)])
    writer(store).compact(2)
    assert read(store)[:12] == expected
    assert key(2, 12) in store.list("log/")


class Moving(MemoryStore):
    """The owner compacts between a reader's list and its first read."""

    owner: Log | None = None

    def read(self, key: str) -> bytes:
        if self.owner is not None:
            owner, self.owner = self.owner, None
            owner.compact(2)
        return super().read(key)


@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_reader_that_is_overtaken_by_compaction_reads_the_same(after: int) -> None:
    store = Moving()
    owner = filled(store, 20)
    expected = read(store)
    store.owner = owner
    assert read(store, after) == expected[after:]
    assert store.owner is None


class Counting(MemoryStore):
    """Counts the bytes written."""

    written = 0

    def create(self, key: str, data: bytes | Path) -> None:
        super().create(key, data)
        self.written += len(data if isinstance(data, bytes) else data.read_bytes())


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_objects_grow_like_the_logarithm_and_bytes_by_n_log_n(every: int) -> None:
    store = Counting()
    log = writer(store)
    most = 0
    for i in range(3000):
        log.append([b"%04d" % i])
        if i % every == 0:
            log.compact(4)
            most = max(most, len(store.list("log/")))
    log.compact(4)
    levels = math.log(3000, 4)
    assert max(most, len(store.list("log/"))) <= 3 * (levels + 1) + 2
    size = sum(len(store.read(name)) for name in store.list("log/"))
    assert store.written <= size * (levels + 1)
    assert [n for n, _ in read(store)] == list(range(1, 3002))


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(2, 6))
def test_levels_never_rise_and_stay_below_the_fanout_however_rarely_one_merges(
    batches: list[int], fanout: int
) -> None:
    run: list[Extent] = []
    segments = rewritten = 0
    for batch in batches:
        run += [Extent(n, n) for n in range(segments + 1, segments + batch + 1)]
        segments += batch
        while group := next_merge(run, fanout):
            start = run.index(group[0])
            assert run[start : start + len(group)] == group
            run[start : start + len(group)] = [Extent(group[0].first, group[-1].last)]
            rewritten += run[start].span
    levels = [
        next(i for i in itertools.count() if extent.span < fanout ** (i + 1)) for extent in run
    ]
    assert levels == sorted(levels, reverse=True)
    assert all(levels.count(level) < fanout for level in levels)
    assert rewritten <= segments * math.log(max(segments, 2), fanout)


def test_restarts_add_a_claim_and_one_object_each() -> None:
    store = MemoryStore()
    for _ in range(10):
        log = filled_from(store, 30)
        log.compact()
    expected = read(store)
    assert len(store.list("log/")) == 10 + 9 + 30  # the last run is still open and small
    assert len(expected) == 310


def filled_from(store: MemoryStore, appends: int) -> Log:
    log = writer(store)
    for i in range(appends):
        log.append([b"%d" % i])
    return log


def test_objects_of_the_largest_size_are_merged_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regrow.infra.log.compaction.MAX_BYTES", 2000)
    store = MemoryStore()
    log = filled_from(store, 300)
    expected = read(store)
    log.compact(2)
    sizes = [len(store.read(name)) for name in store.list("log/")]
    assert max(sizes) < 2 * 2000
    assert len(sizes) < 60
    assert read(store) == expected
    assert log.compact(2) == 0
