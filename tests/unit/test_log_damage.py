"""Damaged logs: a torn end is cut off, anything else stops loudly, naming the object."""

from __future__ import annotations

import pickle

import pytest

from regrow.infra.log.log import CorruptLog, Cut, Log, Superseded
from tests.memory_store import MemoryStore
from tests.unit.logged import filled, key, read, writer
from tests.unit.stores import replace


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
        assert (
            read(store, after=3)
            == list(successor.since(3))
            == [(4, body), (5, [b"claim"]), (6, [b"on"])]
        )


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
    one_line = MemoryStore()
    filled(one_line, 2)
    replace(one_line, key(2), flip(one_line.read(key(2)), 12))
    assert read(one_line, after=1) == [(2, [])], "the last record alone is lost"


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
    for at in (good.index(expected[4][1][0]), len(good) - 1):  # in the middle, and at the end
        replace(store, merged, flip(good, at))
        assert read(store) == expected
    writer(store).compact(2)
    assert read(store)[:10] == expected
    writer(store).compact(2)
    assert store.list("log/") == [key(1), key(2, 10), key(11), key(12)]


def test_a_torn_merged_object_is_made_anew() -> None:
    store = MemoryStore()
    log = filled(store, 10)
    expected = read(store)
    # what a crash leaves on a file system without hard links
    store.create(key(2, 9), store.read(key(2))[:-1])
    assert read(store) == expected
    log.compact(2)
    assert store.list("log/") == [key(1), key(2, 9), key(10)]
    assert read(store) == expected


@pytest.mark.parametrize("error", [CorruptLog("k", "why"), Superseded(3)])
def test_errors_survive_pickling(error: Exception) -> None:
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
