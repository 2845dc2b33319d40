"""One loop for all followers of a log: when it is polled, what an unreachable log is, and the rest
at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.infra.log.follower import Follower, LogGone
from regrow.infra.log.log import CorruptLog, Log, Segments
from regrow.infra.log.segments import Extent
from regrow.infra.log.segments import encode as segment
from regrow.infra.log.subscription import GROWTH, Batch, Subscription, available
from regrow.infra.stores.local import LocalStore
from regrow.search.events import Closed, encode
from regrow.tasks.ports.store import Unavailable

NEVER = (3600.0, 3600.0)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "experiment")


@pytest.fixture
def log(store: LocalStore) -> Log:
    log = Log.open(store)
    log.claim([line(1)])
    return log


def line(number: int) -> bytes:
    return encode(Closed(t=float(number), status="finished"))


class Waits(threading.Event):
    """The event that ends a wait: notes the waits, and does something instead of each."""

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = list(meanwhile)
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if self._meanwhile:
            self._meanwhile.pop(0)()
        else:
            self.set()
        return self.is_set()


class Away:
    """A source that cannot be read at some polls."""

    def __init__(self, source: Follower, *polls: int) -> None:
        self._source, self._polls, self._count = source, polls, 0

    @property
    def more(self) -> bool:
        return self._source.more

    def read(self, *, rest: bool = False) -> Segments:
        self._count += 1
        if self._count in self._polls:
            raise Unavailable("log/2", "away")
        return self._source.read(rest=rest)


def numbers(batches: list[Batch]) -> list[list[int]]:
    return [[number for number, _ in batch.segments] for batch in batches]


def test_each_poll_is_a_batch_and_the_stop_brings_the_rest(log: Log, store: LocalStore) -> None:
    stop = Waits(lambda: log.append([line(2)]), lambda: None)
    batches = []
    for batch in Subscription(Follower(store), NEVER, stop):
        batches.append(batch)
        if stop.is_set() and len(batches) == 4:
            log.append([line(3)])  # too late, after the rest was read
    assert numbers(batches) == [[1], [2], [], []]
    assert [event.t for batch in batches for event in batch.events()] == [1.0, 2.0]
    assert [batch.last for batch in batches] == [False, False, False, True]


def test_the_rest_comes_also_if_it_was_merged_since_the_last_poll(
    log: Log, store: LocalStore
) -> None:
    def write() -> None:
        for number in range(2, 40):
            log.append([line(number)])
        assert log.compact(min_segments=4) > 0
        stop.set()

    stop = Waits(write)
    batches = list(Subscription(Follower(store), NEVER, stop))
    assert numbers(batches) == [[1], list(range(2, 40))]


def test_waits_grow_without_news_and_are_short_again_after_some(
    log: Log, store: LocalStore
) -> None:
    def nothing() -> None:
        pass

    stop = Waits(nothing, nothing, nothing, lambda: log.append([line(2)]), nothing)
    list(Subscription(Follower(store), (0.5, 1.0), stop))
    assert stop.waits == [0.5, 0.5 * GROWTH, 1.0, 1.0, 0.5, 0.5 * GROWTH]


def test_a_log_that_cannot_be_read_is_told_and_polled_again(log: Log, store: LocalStore) -> None:
    stop = Waits(lambda: None, lambda: log.append([line(2)]), lambda: None)
    source = Away(Follower(store), 2, 3)
    batches = list(Subscription(source, (0.5, 1.0), stop))
    assert numbers(batches) == [[1], [], [], [2], []]
    assert [batch.trouble is not None for batch in batches] == [False, True, True, False, False]
    assert stop.waits == [0.5, 0.5 * GROWTH, 1.0, 0.5]


def test_an_unreachable_log_does_not_keep_an_ended_subscription(
    log: Log, store: LocalStore
) -> None:
    assert log.last == 1
    stop = threading.Event()
    stop.set()
    (batch,) = Subscription(Away(Follower(store), 1), NEVER, stop)
    assert batch.trouble is not None


def test_a_log_that_was_removed_or_is_damaged_ends_the_subscription(
    log: Log, store: LocalStore
) -> None:
    log.append([line(2)])
    removed = Waits(lambda: store.delete(store.list("log/")), *([lambda: None] * 9))
    with pytest.raises(LogGone):
        list(Subscription(Follower(store), NEVER, removed))
    Log.open(store).claim([line(1)])
    broken = segment(2, [line(2), line(3)], writer="w").replace(b"2.0", b"9.0")
    damaged = Waits(lambda: store.create(Extent(2, 2).key, broken), *([lambda: None] * 9))
    with pytest.raises(CorruptLog):
        list(Subscription(Follower(store), NEVER, damaged))


def test_in_the_background_the_block_ends_a_wait_and_gets_the_rest(
    log: Log, store: LocalStore
) -> None:
    taken: list[Batch] = []
    first = threading.Event()

    def take(batch: Batch) -> None:
        taken.append(batch)
        first.set()

    with Subscription(Follower(store), NEVER).in_background(take, "follower") as thread:
        first.wait()
        log.append([line(2)])
    assert not thread.is_alive()
    assert numbers(taken) == [[1], [2]]


def test_an_error_of_a_background_reader_is_logged(
    log: Log, store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    def take(batch: Batch) -> None:
        raise ValueError(f"{len(batch.segments)} segments")

    assert log.last == 1
    with (
        caplog.at_level("INFO", logger="regrow.infra.log"),
        Subscription(Follower(store), NEVER).in_background(take, "follower") as thread,
    ):
        thread.join()
    assert caplog.messages == ["follower follows the log no more"]


def test_what_is_available_ends_where_the_log_does(
    log: Log, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.infra.log.log.ANSWER_BYTES", 120)
    for number in range(2, 20):
        log.append([line(number)])
    follower = Follower(store)
    parts = list(available(follower))
    assert len(parts) > 3
    assert [number for part in parts for number, _ in part] == list(range(1, 20))
    assert list(available(follower)) == []
    Log.open(store).claim([line(20)])
    log = Log.open(store)
    log.claim([line(21)])
    assert [number for part in available(follower) for number, _ in part] == [20, 21]
