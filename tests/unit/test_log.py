"""The log: nothing acknowledged is lost, nothing is read twice, and of two writers one stops."""

from __future__ import annotations

import itertools
import math
import pickle
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.infra import log as log_module
from regrow.infra.compaction import crowded
from regrow.infra.log import CorruptLog, Cut, Log, Superseded
from regrow.infra.segments import Extent, cover, decode, encode
from regrow.infra.stores.local import LocalStore
from regrow.infra.stores.memory import MemoryStore
from regrow.tasks.ports import Unavailable

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


def replace(store: MemoryStore, name: str, data: bytes) -> None:
    store.delete([name])
    store.create(name, data)


def read(store: MemoryStore, after: int = 0) -> Lines:
    return list(Log.read(store, after))


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


def test_since_reads_the_store_for_what_memory_no_longer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CACHE_BYTES", 40)
    store = MemoryStore()
    log = filled(store, 30)
    for after in range(31):
        assert list(log.since(after)) == read(store, after)
    log.compact(min_segments=4)
    for after in range(31):
        assert list(log.since(after)) == read(store, after)


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_who_follows_gets_a_long_log_in_answers_of_so_many_bytes(cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [log_module.full(answer) for answer in answers] == [True] * (len(answers) - 2) + [False] * 2


def test_foreign_objects_are_ignored() -> None:
    store = MemoryStore()
    log = filled(store, 3)
    for name in ("log/.DS_Store", "log/1.jsonl", "log/0000000009.jsonl.bak", "log/notes/0000000009.jsonl"):
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


def test_a_claim_that_slept_since_it_opened_the_log_is_refused_though_its_number_was_merged_away() -> None:
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
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("oacCra")), max_size=120), st.integers(2, 4))
def test_whatever_writers_do_in_turns_the_log_is_what_was_acknowledged(steps: list[tuple[int, str]], fanout: int) -> None:
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


# Failures of the store


class Faulty(MemoryStore):
    """Fails at chosen calls that change it: before they take effect, or after (the answer is lost)."""

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


# Damage


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def test_a_torn_last_segment_is_cut_to_its_whole_lines_and_reported() -> None:
    whole = MemoryStore()
    log = filled(whole, 3)
    log.append([b"one", b"two", b"three"])
    data = whole.read(key(4))
    for length in range(len(data)):
        store = MemoryStore()
        filled(store, 3)
        store.create(key(4), data[:length])
        cuts: list[Cut] = []
        (*_, (number, lines)) = Log.read(store, on_cut=cuts.append)
        body = data[:length].split(b"\n")[1:-1] if b"\n" in data[:length] else []
        assert (number, lines) == (4, body)
        assert [(cut.key, cut.kept) for cut in cuts] == [(key(4), len(body))]

        successor = Log.open(store)
        assert successor.cut == cuts[0]
        assert list(successor.since(3)) == [(4, body)]
        successor.claim([b"claim"])
        successor.append([b"on"])
        assert read(store, after=3) == [(4, body), (5, [b"claim"]), (6, [b"on"])]
        successor.compact(2)
        assert read(store, after=3) == list(successor.since(3)) == [(4, body), (5, [b"claim"]), (6, [b"on"])]


def test_what_a_slow_writer_adds_to_a_segment_that_was_cut_does_not_count() -> None:
    whole = MemoryStore()
    filled(whole, 1).append([b"one", b"two"])
    data = whole.read(key(2))
    store = MemoryStore()
    filled(store, 1)
    store.create(key(2), data[:-2])
    writer(store)
    replace(store, key(2), data)
    assert read(store, after=1) == [(2, [b"one"]), (3, [b'{"event":"opened"}'])]


def test_any_damaged_byte_of_an_earlier_segment_stops_loudly_naming_the_object() -> None:
    store = MemoryStore()
    log = filled(store, 3)
    log.append([b"one", b"two"])
    filled(store, 6)
    good = store.read(key(4))
    for at in range(len(good)):
        replace(store, key(4), flip(good, at))
        with pytest.raises(CorruptLog, match=key(4)):
            read(store)
        assert read(store, after=4)  # what follows is not affected


def test_a_damaged_record_that_is_not_the_last_stops_loudly_even_in_the_last_segment() -> None:
    store = MemoryStore()
    filled(store, 1).append([b"one", b"two", b"three"])
    good = store.read(key(2))
    for damaged in (flip(good, good.index(b"two")), flip(good, 12)):
        replace(store, key(2), damaged)
        with pytest.raises(CorruptLog, match=key(2)):
            read(store)
        with pytest.raises(CorruptLog, match=key(2)):
            Log.open(store)
    replace(store, key(2), flip(good, good.index(b"three")))
    assert read(store, after=1) == [(2, [b"one", b"two"])]


def test_a_missing_segment_stops_loudly() -> None:
    store = MemoryStore()
    filled(store, 5)
    store.delete([key(3)])
    with pytest.raises(CorruptLog, match=f"{key(3)}.*missing"):
        read(store)


def test_a_copied_segment_is_not_taken_for_another() -> None:
    store = MemoryStore()
    filled(store, 4)
    replace(store, key(2), store.read(key(3)))
    with pytest.raises(CorruptLog, match="says segment 3"):
        read(store)


def test_a_damaged_merged_object_stops_loudly_unless_its_parts_are_there() -> None:
    store = MemoryStore()
    log = filled(store, 10)
    parts = {name: store.read(name) for name in store.list("log/")}
    expected = read(store)
    log.compact(2)
    merged = key(2, 9)
    good = store.read(merged)
    for at in range(0, len(good), 7):
        replace(store, merged, flip(good, at))
        with pytest.raises(CorruptLog, match=merged):
            read(store)
    for name, data in parts.items():
        if name not in store.list("log/"):
            store.create(name, data)
    assert read(store) == expected
    writer(store).compact(2)
    assert read(store)[:10] == expected
    writer(store).compact(2)
    assert store.list("log/") == [key(1), key(2, 10), key(11), key(12)]


def test_a_torn_merged_object_is_made_anew() -> None:
    store = MemoryStore()
    log = filled(store, 10)
    expected = read(store)
    store.create(key(2, 9), store.read(key(2))[:-1])  # what a crash leaves on a file system without hard links
    assert read(store) == expected
    log.compact(2)
    assert store.list("log/") == [key(1), key(2, 9), key(10)]
    assert read(store) == expected


@pytest.mark.parametrize("error", [CorruptLog("k", "why"), Superseded(3)])
def test_errors_survive_pickling(error: Exception) -> None:
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# Compaction


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
def test_levels_never_rise_and_stay_below_the_fanout_however_rarely_one_merges(batches: list[int], fanout: int) -> None:
    run: list[Extent] = []
    segments = rewritten = 0
    for batch in batches:
        run += [Extent(n, n) for n in range(segments + 1, segments + batch + 1)]
        segments += batch
        while group := crowded(run, fanout):
            start = run.index(group[0])
            assert run[start : start + len(group)] == group
            run[start : start + len(group)] = [Extent(group[0].first, group[-1].last)]
            rewritten += run[start].span
    levels = [next(i for i in itertools.count() if extent.span < fanout ** (i + 1)) for extent in run]
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
    monkeypatch.setattr("regrow.infra.compaction.MAX_BYTES", 2000)
    store = MemoryStore()
    log = filled_from(store, 300)
    expected = read(store)
    log.compact(2)
    sizes = [len(store.read(name)) for name in store.list("log/")]
    assert max(sizes) < 2 * 2000
    assert len(sizes) < 60
    assert read(store) == expected
    assert log.compact(2) == 0


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12)), max_size=30), st.integers(0, 20))
def test_cover_holds_everything_or_names_the_first_hole(spans: list[tuple[int, int]], after: int) -> None:
    known = [Extent(first, first + more) for first, more in spans]
    held = {n for extent in known for n in range(extent.first, extent.last + 1)}
    end = max(held, default=0)
    chain, hole = cover(known, after, end)
    wanted = range(after + 1, end + 1)
    assert hole == next((n for n in wanted if n not in held), None)
    assert {n for e in chain for n in range(e.first, e.last + 1)} >= set(range(after + 1, hole or end + 1))


@given(
    st.lists(st.binary(max_size=20).filter(lambda b: b"\n" not in b)),
    st.booleans(),
    st.none() | st.integers(0, 9),
)
def test_a_segment_decodes_to_what_was_encoded(lines: list[bytes], claim: bool, kept: int | None) -> None:
    data = encode(7, lines, writer="w", claim=claim, kept=kept)
    (segment,) = decode(data, Extent(7, 7))
    assert segment[:5] == (7, lines, claim, kept, "")
    assert data[segment.start : segment.end] == data
