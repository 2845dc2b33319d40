"""Following a log in a store from outside: everything once, in order, whatever its writer does,
with few requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from regrow.infra.log.follower import LIST_EVERY, Follower, LogGone
from regrow.infra.log.log import CorruptLog, Log
from regrow.infra.log.segments import Extent, encode
from regrow.infra.stores.local import LocalStore
from regrow.tasks.ports.store import Store


class Counting:
    """A store that counts what it is asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    def create(self, key: str, data: bytes | Path) -> None:
        raise AssertionError(f"a follower only reads, and wrote {key}")

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        raise AssertionError(f"a follower only reads, and deleted {list(keys)}")

    def read(self, key: str) -> bytes:
        self.asked["read"] += 1
        return self._store.read(key)

    def fetch(self, key: str, path: Path) -> None:
        self._store.fetch(key, path)

    def list(self, prefix: str) -> list[str]:
        self.asked["list"] += 1
        return self._store.list(prefix)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "experiment")


def line(number: int) -> bytes:
    return f'{{"n":{number}}}'.encode()


def test_what_is_added_comes_once_and_in_order(store: LocalStore) -> None:
    log = Log.open(store)
    log.claim([line(1)])
    follower = Follower(store)
    assert follower.read() == [(1, [line(1)])]
    assert follower.read() == []
    for number in range(2, 50):
        log.append([line(number), b"{}"])
        if number % 7 == 0:
            assert [found for found, _ in follower.read()] == list(
                range(number - 6 if number > 7 else 2, number + 1)
            )
    assert follower.read() == []
    assert follower.after == 49


def test_nothing_is_missed_when_segments_are_merged_meanwhile(store: LocalStore) -> None:
    log = Log.open(store)
    log.claim([line(1)])
    follower = Follower(store)
    seen = follower.read()
    for number in range(2, 400):
        log.append([line(number)])
        log.compact(min_segments=4)
        if number % 37 == 0:  # long after what came next was merged away
            for _ in range(LIST_EVERY + 1):
                seen += follower.read()
            assert seen[-1][0] == number
    for _ in range(LIST_EVERY + 1):
        seen += follower.read()
    assert [found for found, _ in seen] == list(range(1, 400))
    assert [lines for _, lines in seen] == [[line(number)] for number in range(1, 400)]


def test_a_look_that_finds_nothing_is_one_small_request_and_seldom_a_list(
    store: LocalStore,
) -> None:
    log = Log.open(store)
    log.claim([line(1)])
    counting = Counting(store)
    follower = Follower(counting)
    follower.read()
    counting.asked.clear()
    for _ in range(60):
        follower.read()
    assert counting.asked["list"] <= 24
    assert counting.asked["read"] <= 60
    counting.asked.clear()
    for number in range(2, 62):
        log.append([line(number)])
        assert follower.read() == [(number, [line(number)])]
    assert counting.asked["list"] == 0


def test_another_drivers_claim_is_followed(store: LocalStore) -> None:
    first = Log.open(store)
    first.claim([line(1)])
    follower = Follower(store)
    follower.read()
    first.append([line(2)])
    second = Log.open(store)
    second.claim([line(3)])
    second.append([line(4)])
    seen = follower.read()
    while follower.after < 4:
        seen += follower.read()
    assert seen == [(number, [line(number)]) for number in (2, 3, 4)]


def test_a_torn_segment_comes_when_its_successor_says_what_of_it_counts(store: LocalStore) -> None:
    log = Log.open(store)
    log.claim([line(1)])
    follower = Follower(store)
    follower.read()
    whole = encode(2, [line(2), line(3)], writer="w")
    key = Extent(2, 2).key
    store.create(key, whole[:-3])  # where a file system has no links, a killed writer leaves a part
    assert follower.read() == []
    assert follower.read() == []
    Log.open(store).claim([line(4)])
    seen = follower.read()
    while follower.after < 3:
        seen += follower.read()
    assert seen == [(2, [line(2)]), (3, [line(4)])]


def test_damage_is_told(store: LocalStore) -> None:
    log = Log.open(store)
    log.claim([line(1)])
    follower = Follower(store)
    follower.read()
    key = Extent(2, 2).key
    store.create(key, encode(2, [line(2), line(3), line(4)], writer="w").replace(b"2}", b"9}"))
    with pytest.raises(CorruptLog, match="line 1 of 3 is damaged"):
        follower.read()


def test_a_slow_reader_sees_at_once_what_was_merged_since_it_read(store: LocalStore) -> None:
    log = Log.open(store)
    log.claim([line(1)])
    often, seldom = Follower(store), Follower(store, list_every=1)
    assert len(often.read()) == len(seldom.read()) == 1
    for number in range(2, 10):
        log.append([line(number)])
    assert log.compact(min_segments=4) > 0
    assert often.read() == []
    assert [number for number, _ in seldom.read()] == list(range(2, 10))


def test_a_log_that_was_removed_is_told(store: LocalStore) -> None:
    log = Log.open(store)
    log.claim([line(1)])
    log.append([line(2)])
    follower = Follower(store)
    follower.read()
    store.delete(store.list("log/"))
    assert [follower.read() for _ in range(LIST_EVERY - 1)] == [[]] * (LIST_EVERY - 1)
    with pytest.raises(LogGone):
        follower.read()


@pytest.mark.parametrize("merged", [False, True])
def test_a_long_log_comes_in_parts_of_so_many_bytes(
    store: LocalStore, merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.infra.log.log.ANSWER_BYTES", 50)
    log = Log.open(store)
    log.claim([line(1)])
    for number in range(2, 40):
        log.append([line(number)])
    if merged:
        assert log.compact(min_segments=4) > 0
    follower, parts = Follower(store), []
    while part := follower.read():
        parts.append(part)
    assert [segment for part in parts for segment in part] == list(Log.read(store))
    assert max(len(part) for part in parts) < 10
    for number in range(40, 70):
        log.append([line(number)])
    later = [segment for _ in range(10) for segment in follower.read()]
    assert [number for number, _ in later] == list(range(40, 70))
    log.append([line(70)])
    log.append([line(71)])
    assert follower.read() == [(70, [line(70)]), (71, [line(71)])], "asked for by their names"
    for number in range(72, 90):
        log.append([line(number)])
    assert len(follower.read()) < 10
