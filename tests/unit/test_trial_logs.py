"""What trials print: kept as objects whatever the store does, and read in order."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from regrow.infra.stores.local import LocalStore
from regrow.search.events import encode as event_bytes
from regrow.show.views.trial_logs import TrialLogs
from regrow.tasks.errors import UserError
from regrow.tasks.output import parts
from regrow.tasks.output.parts import Keeper, OutputLine, decode, encode, key
from regrow.tasks.ports.store import Store, Unavailable
from tests.memory_store import MemoryStore
from tests.unit.fresh import fresh
from tests.unit.lost_trial import TRACE, beginning, ending, loss, written
from tests.unit.programs import await_true


def line(text: str, t: float = 1.0) -> OutputLine:
    return OutputLine(t=t, stream="stdout", text=text)


def texts(store: Store, trial: int, attempt: int) -> list[str]:
    keys = sorted(store.list(parts.prefix(trial, attempt)))
    return [found.text for part in keys for found in decode(store.read(part))]


class Moody(MemoryStore):
    """A store that is away, slow, or loses the answers to its first writes."""

    def __init__(self) -> None:
        super().__init__()
        self.away = self.forgetful = False
        self.open = threading.Event()
        self.open.set()

    def create(self, key: str, data: bytes | Path) -> None:
        """See Store."""
        assert self.open.wait(20)
        if self.away:
            raise Unavailable(key, "it is away")
        super().create(key, data)
        if self.forgetful:
            self.forgetful = False
            raise Unavailable(key, "its answer was lost")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(parts, "TICK_SECONDS", 0.02)


def test_what_was_printed_is_in_the_store_when_the_end_has_been_awaited(tmp_path: Path) -> None:
    store, keeper = LocalStore(tmp_path), Keeper()
    kept = keeper.open(store, 3, 2)
    lines = [
        line("one"),
        OutputLine(
            t=2.5, stream="log", text="two\nlines \x1b[31m\x00", level="WARNING", logger="a.b"
        ),
    ]
    assert all(kept.add(one) for one in lines)
    keeper.close(kept)
    assert keeper.finish(10)
    assert store.list("logs/") == ["logs/3/2/000001.jsonl"]
    assert decode(store.read("logs/3/2/000001.jsonl")) == lines


def test_an_attempt_that_prints_nothing_leaves_no_object() -> None:
    store, keeper = MemoryStore(), Keeper()
    keeper.close(keeper.open(store, 0, 1))
    assert keeper.finish(10)
    assert store.list("") == []


def test_it_is_written_while_the_attempt_runs(
    monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    monkeypatch.setattr(parts, "FIRST_SECONDS", 0.05)
    store, keeper = MemoryStore(), Keeper()
    kept = keeper.open(store, 0, 1)
    for text in ("one", "two"):
        kept.add(line(text))
        await_texts(store, text)
    assert texts(store, 0, 1) == ["one", "two"]
    assert len(store.list("logs/0/1/")) == 2


def await_texts(store: Store, last: str) -> None:
    assert await_true(lambda: last in texts(store, 0, 1))


def test_a_store_that_is_away_gets_everything_in_order_once_it_is_back(impatient: None) -> None:
    store, keeper = Moody(), Keeper()
    store.away = True
    first = keeper.open(store, 0, 1)
    first.add(line("one"))
    keeper.close(first)
    assert not keeper.finish(0.3)
    second = keeper.open(store, 0, 2)
    second.add(line("two"))
    keeper.close(second)
    store.away = False
    assert keeper.finish(10)
    assert (texts(store, 0, 1), texts(store, 0, 2)) == (["one"], ["two"])


def test_a_write_whose_answer_was_lost_is_there_once(impatient: None) -> None:
    store, keeper = Moody(), Keeper()
    store.forgetful = True
    kept = keeper.open(store, 0, 1)
    kept.add(line("one"))
    keeper.close(kept)
    assert keeper.finish(10)
    assert texts(store, 0, 1) == ["one"]


def test_what_came_meanwhile_does_not_double_a_part_whose_answer_was_lost(impatient: None) -> None:
    store, keeper = Moody(), Keeper()
    store.forgetful = True
    kept = keeper.open(store, 0, 1)
    kept.add(line("one"))
    kept._begun = kept._tried = -1000.0  # due
    kept.write()
    kept.add(line("two"))
    keeper.close(kept)
    assert keeper.finish(10)
    assert texts(store, 0, 1) == ["one", "two"]


def test_an_output_that_was_written_and_dropped_meanwhile_can_be_closed() -> None:
    keeper = Keeper()
    kept = keeper.open(MemoryStore(), 0, 1)
    keeper._outputs.clear()  # as its thread does between `closed` and the lock
    keeper.close(kept)
    assert keeper.finish(1)


LOCKED = """
import logging, sys, threading
sys.path.insert(0, ".")
from regrow.tasks.output.capture import CAPTURE

told = threading.Lock()  # as every handler has one
ready, go = threading.Event(), threading.Event()
lines = []

def printed(stream, text, t):
    if text == "first":
        ready.set()
        assert go.wait(20)
    with told:
        lines.append(text)
    return True

with CAPTURE.on(), CAPTURE.passing_to(printed):
    one = threading.Thread(target=print, args=("first",), daemon=True)
    one.start()
    assert ready.wait(20)
    def other():
        with told:
            go.set()
            sys.stdout.write("half a line")  # whoever holds a lock of the one that is told may print, too
    two = threading.Thread(target=other, daemon=True)
    two.start()
    one.join(10), two.join(10)
    stuck = one.is_alive() or two.is_alive()
sys.__stdout__.flush()
import os
os.write(1, b"stuck" if stuck else b"fine")
os._exit(0)
"""


def test_no_lock_is_held_while_a_line_is_told() -> None:
    done = fresh(LOCKED)
    assert done.stdout == "fine", done.stderr


def test_two_processes_with_the_same_attempt_lose_nothing_of_each_other() -> None:
    store, keeper = MemoryStore(), Keeper()
    store.create(key(0, 1, 1), encode([line("another's")]))
    kept = keeper.open(store, 0, 1)
    kept.add(line("ours"))
    keeper.close(kept)
    assert keeper.finish(10)
    assert texts(store, 0, 1) == ["another's", "ours"]


def test_an_attempt_does_not_wait_for_its_last_object() -> None:
    store, keeper = Moody(), Keeper()
    store.open.clear()
    kept = keeper.open(store, 0, 1)
    kept.add(line("one"))
    keeper.close(kept)  # comes back, though no object can be written before the store opens
    assert not keeper.finish(0.2)
    store.open.set()
    assert keeper.finish(10)


def test_too_much_is_cut_with_a_word_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 3000)
    monkeypatch.setattr(parts, "PART_BYTES", 500)
    store, keeper = MemoryStore(), Keeper()
    kept = keeper.open(store, 0, 1)
    taken = [kept.add(line(f"{n:0100d}")) for n in range(100)]
    assert taken == [True] * 18 + [False] * 82
    keeper.close(kept)
    assert keeper.finish(10)
    found = texts(store, 0, 1)
    assert found[:18] == [f"{n:0100d}" for n in range(18)]
    assert found[18:] == ["more than 0 MB: what comes now is not kept"]
    assert len(store.list("logs/")) > 3


def test_what_waits_for_a_store_is_bounded(
    monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    monkeypatch.setattr(parts, "MOST_WAITING", 2000)
    store, keeper = Moody(), Keeper()
    store.away = True
    for trial in range(10):
        kept = keeper.open(store, trial, 1)
        kept.add(line("x" * 500))
        keeper.close(kept)
    assert not keeper.finish(0.5)
    store.away = False
    assert keeper.finish(10)
    kept_of = [trial for trial in range(10) if texts(store, trial, 1)]
    assert kept_of == [7, 8, 9], "those that ended first went first"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return LocalStore(tmp_path)


def shown(logs: TrialLogs, now: float | None = None) -> list[tuple[int, str]]:
    return [(attempt, found.text) for attempt, found in logs.new(now)]


def test_attempts_are_told_in_order_with_how_they_began_and_ended(store: Store) -> None:
    written(store, beginning(), loss(), ending())
    store.create(key(0, 1, 1), encode([line("first")]))
    for part in range(1, 12):
        store.create(key(0, 2, part), encode([line(f"part {part}")]))
    store.create(key(0, 10, 1), encode([line("of an attempt that no event names")]))
    assert shown(TrialLogs(store, 0)) == [
        (1, "attempt 1 on east, from the beginning"),
        (1, "first"),
        (1, "attempt 1 lost at step 1: it was killed"),
        (2, "attempt 2 on west, continues after step 1"),
        *[(2, f"part {part}") for part in range(1, 12)],
        (2, "attempt 2 done at step 3"),
    ]
    assert [attempt for attempt, _ in shown(TrialLogs(store, 0, 2))] == [2] * 13


def test_the_traceback_of_a_failed_attempt_is_shown(store: Store) -> None:
    written(store, beginning(), loss(), ending())
    logs = TrialLogs(store, 1)
    found = list(logs.new(None))
    assert [(one.stream, one.text) for _, one in found] == [
        ("regrow", "attempt 1 on west, from the beginning"),
        ("traceback", TRACE),
        ("regrow", "attempt 1 failed at step 0: ValueError: bad | luck"),
    ]
    assert logs.lines == 0
    assert logs.over


def test_following_tells_each_line_once_and_waits_for_last_words(store: Store) -> None:
    log = written(store, beginning())
    store.create(key(0, 1, 1), encode([line("first")]))
    logs = TrialLogs(store, 0)
    assert shown(logs, 3.0) == [(1, "attempt 1 on east, from the beginning"), (1, "first")]
    assert shown(logs, 3.0) == []
    log.append([event_bytes(event) for event in loss()])
    assert shown(logs, 5.0) == [], "its last words may still come"
    store.create(key(0, 1, 2), encode([line("last words")]))
    assert shown(logs, 8.0) == [
        (1, "last words"),
        (1, "attempt 1 lost at step 1: it was killed"),
        (2, "attempt 2 on west, continues after step 1"),
    ]
    assert not logs.over
    log.append([event_bytes(event) for event in ending()])
    assert shown(logs, 20.0) == [(2, "attempt 2 done at step 3")]
    assert logs.over


def test_a_damaged_object_does_not_hide_the_others(store: Store) -> None:
    written(store, beginning())
    store.create(key(0, 1, 1), b"\x00 no JSON\n")
    store.create(key(0, 1, 2), encode([line("second")]))
    _, damaged, second = shown(TrialLogs(store, 0))
    assert damaged[1].startswith("logs/0/1/000001.jsonl cannot be read")
    assert second[1] == "second"


@pytest.mark.parametrize(
    ("trial", "attempt", "told"),
    [
        (2, None, "there is no trial 2 in 'told'; it has the trials 0 to 1"),
        (0, 2, "there is no attempt 2 of trial 0; it has 1"),
    ],
)
def test_what_is_not_there_is_told(
    store: Store, trial: int, attempt: int | None, told: str
) -> None:
    written(store, beginning())
    with pytest.raises(UserError, match=told):
        TrialLogs(store, trial, attempt)
