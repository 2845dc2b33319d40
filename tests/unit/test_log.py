"""The log: nothing acknowledged is lost, nothing is read twice, and of two writers one stops."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.infra.log import log as log_module
from regrow.infra.log.log import Log, Superseded
from regrow.infra.log.segments import Extent, cover, decode, encode
from regrow.infra.stores.local import LocalStore
from regrow.tasks.ports.store import Unavailable
from tests.memory_store import MemoryStore
from tests.unit.logged import Lines, filled, key, read, writer
from tests.unit.stores import Faulty

# Writing and reading


def test_segments_are_numbered_from_one_and_read_back_in_order() -> None:
    store = MemoryStore()
    log = Log.open(store)
    assert read(store) == []
    assert [log.claim([b"a"]), log.append([b"b", b"c"]), log.append([b""])] == [1, 2, 3]
    expected = [(1, [b"a"]), (2, [b"b", b"c"]), (3, [b""])]
    assert read(store) == list(log.since(0)) == list(Log.open(store).since(0)) == expected
    assert read(store, after=2) == list(log.since(2)) == expected[2:]
    assert read(store, after=3) == list(log.since(3)) == list(log.since(9)) == []


def test_a_segment_is_readable_json_lines() -> None:
    store = MemoryStore()
    writer(store).append([b'{"event":"x"}', b'{"event":"y"}'])
    lines = store.read("log/0000000002.jsonl").split(b"\n")
    assert lines[0].startswith(b'{"crc32":')
    assert lines[1:] == [b'{"event":"x"}', b'{"event":"y"}', b""]


def test_a_line_that_would_be_two_is_refused_and_nothing_is_written() -> None:
    store = MemoryStore()
    log = writer(store)
    with pytest.raises(ValueError, match="line end"):
        log.append([b"a\nb"])
    with pytest.raises(ValueError, match="nothing"):
        log.append([])
    assert log.append([b"c"]) == 2


def test_the_first_write_is_a_claim() -> None:
    log = Log.open(MemoryStore())
    with pytest.raises(RuntimeError, match="claim"):
        log.append([b"a"])
    with pytest.raises(RuntimeError, match="claim"):
        log.compact()


def test_since_reads_the_store_for_what_memory_no_longer_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "CACHE_BYTES", 40)
    store = MemoryStore()
    log = filled(store, 30)
    for after in range(31):
        assert list(log.since(after)) == read(store, after)
    log.compact(min_segments=4)
    for after in range(31):
        assert list(log.since(after)) == read(store, after)


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_who_follows_gets_a_long_log_in_answers_of_so_many_bytes(
    cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "CACHE_BYTES", cache)
    monkeypatch.setattr(log_module, "ANSWER_BYTES", 40)
    store = MemoryStore()
    log = filled(store, 30)
    log.compact(min_segments=4)
    answers = [log.answer(0)]
    while answers[-1]:
        answers.append(log.answer(answers[-1][-1][0]))
    assert [segment for answer in answers for segment in answer] == read(store)
    assert max(len(answer) for answer in answers) < 10
    assert [log_module.full(answer) for answer in answers] == [True] * (len(answers) - 2) + [
        False
    ] * 2


def test_foreign_objects_are_ignored() -> None:
    store = MemoryStore()
    log = filled(store, 3)
    for name in (
        "log/.DS_Store",
        "log/1.jsonl",
        "log/0000000009.jsonl.bak",
        "log/notes/0000000009.jsonl",
    ):
        store.create(name, b"?")
    assert [n for n, _ in read(store)] == [1, 2, 3]
    assert Log.open(store).last == log.last == 3


# Fencing


def test_a_writer_that_lost_a_segment_refuses_everything_from_then_on() -> None:
    store = MemoryStore()
    old = filled(store, 3)
    new = writer(store)
    with pytest.raises(Superseded, match="segment 4"):
        old.append([b"zombie"])
    for refused in (
        lambda: old.append([b"zombie"]),
        lambda: old.claim([b"zombie"]),
        old.compact,
        lambda: list(old.since(0)),
    ):
        with pytest.raises(Superseded):
            refused()
    assert new.append([b"mine"]) == 5
    assert read(store)[3:] == [(4, [b'{"event":"opened"}']), (5, [b"mine"])]


def test_claims_collide_with_appends_and_with_claims() -> None:
    store = MemoryStore()
    first, second = Log.open(store), Log.open(store)
    first.claim([b"a"])
    with pytest.raises(Superseded):
        second.claim([b"a"])  # equal lines don't make them one writer
    late = Log.open(store)
    first.append([b"b"])
    with pytest.raises(Superseded):
        late.claim([b"c"])


@pytest.mark.parametrize("fanout", [2, 3, 5])
def test_a_zombie_of_any_age_still_collides_after_compaction(fanout: int) -> None:
    store = MemoryStore()
    zombies: list[Log] = []
    for epoch in range(8):
        log = writer(store)
        for i in range(epoch * 3):
            log.append([b"%d.%d" % (epoch, i)])
            log.compact(fanout)
        zombies.append(log)
    owner = filled(store, 40)
    owner.compact(fanout)
    before = read(store)
    for zombie in reversed(zombies):
        zombie.compact(fanout)  # it may not know yet; that harms nobody
        with pytest.raises(Superseded):
            zombie.append([b"zombie"])
    assert read(store) == before
    owner.append([b"still mine"])


def test_a_claim_that_slept_since_it_opened_the_log_is_refused_though_its_number_was_merged_away() -> (
    None
):
    store = MemoryStore()
    owner = filled(store, 3)
    sleeper = Log.open(store)
    for i in range(40):
        owner.append([b"%d" % i])
    owner.compact(2)
    its_number = key(sleeper.last + 1)
    assert its_number not in store.list("log/")
    before = read(store)
    with pytest.raises(Superseded):
        sleeper.claim([b"late"])
    with pytest.raises(Superseded):
        sleeper.append([b"late"])
    assert read(store) == before
    assert owner.append([b"mine"]) == len(before) + 1

    # What it left lies within a merged object; the next owner removes it.
    assert its_number in store.list("log/")
    next_owner = writer(store)
    next_owner.compact(2)
    assert its_number not in store.list("log/")
    assert read(store)[: len(before)] == before


def test_racing_writers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    acknowledged: list[tuple[int, list[bytes]]] = []
    start = threading.Barrier(6)

    def run(me: int) -> None:
        start.wait()
        for epoch in itertools.count():
            if len(acknowledged) > 150:
                return
            try:
                log = Log.open(store)
                lines = [b"claim %d.%d" % (me, epoch)]
                acknowledged.append((log.claim(lines), lines))
                for i in range(12):
                    lines = [b"%d.%d.%d" % (me, epoch, i)]
                    acknowledged.append((log.append(lines), lines))
                    log.compact(3)
            except Superseded:
                continue

    threads = [threading.Thread(target=run, args=(me,)) for me in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(Log.read(store)) == sorted(acknowledged)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("oacCra")), max_size=120),
    st.integers(2, 4),
)
def test_whatever_writers_do_in_turns_the_log_is_what_was_acknowledged(
    steps: list[tuple[int, str]], fanout: int
) -> None:
    store = MemoryStore()
    logs = [Log.open(store) for _ in range(4)]
    claimed: set[int] = set()
    model: Lines = []
    for i, (who, what) in enumerate(steps):
        lines = [b"%d" % i]
        try:
            if what == "o":
                logs[who] = Log.open(store)
                claimed.discard(who)
            elif what == "c":
                model.append((logs[who].claim(lines), lines))
                claimed.add(who)
            elif what == "a" and who in claimed:
                model.append((logs[who].append(lines), lines))
            elif what == "C" and who in claimed:
                logs[who].compact(fanout)
            elif what == "r" and who in claimed:
                seen = list(logs[who].since(0))
                assert seen == model[: len(seen)]
        except Superseded:
            pass
        assert read(store) == model
    assert [n for n, _ in model] == list(range(1, len(model) + 1))


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_write_whose_answer_was_lost_is_settled_by_repeating_it(took_effect: bool) -> None:
    store = Faulty()
    log = Log.open(store)
    for write, lines in ((log.claim, [b"claim"]), (log.append, [b"event"])):
        store.fail_next(took_effect=took_effect)
        with pytest.raises(Unavailable):
            write(lines)
        with pytest.raises(RuntimeError, match="repeat"):
            write([b"something else"])
        write(lines)
    assert read(store) == list(log.since(0)) == [(1, [b"claim"]), (2, [b"event"])]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12)), max_size=30), st.integers(0, 20))
def test_cover_holds_everything_or_names_the_first_hole(
    spans: list[tuple[int, int]], after: int
) -> None:
    known = [Extent(first, first + more) for first, more in spans]
    held = {n for extent in known for n in range(extent.first, extent.last + 1)}
    end = max(held, default=0)
    chain, hole = cover(known, after, end)
    wanted = range(after + 1, end + 1)
    assert hole == next((n for n in wanted if n not in held), None)
    assert {n for e in chain for n in range(e.first, e.last + 1)} >= set(
        range(after + 1, hole or end + 1)
    )


@given(
    st.lists(st.binary(max_size=20).filter(lambda b: b"\n" not in b)),
    st.booleans(),
    st.none() | st.integers(0, 9),
)
def test_a_segment_decodes_to_what_was_encoded(
    lines: list[bytes], claim: bool, kept: int | None
) -> None:
    data = encode(7, lines, writer="w", claim=claim, kept=kept)
    (segment,) = decode(data, Extent(7, 7))
    assert segment[:5] == (7, lines, claim, kept, "")
    assert data[segment.start : segment.end] == data
