"""The journal of triggers: whatever a process died over, what was on disk counts, and nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.apps.station.triggers.journal import COMPACT_BYTES, MADE_KEPT, Journal
from tests.conftest import disk_of, fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "triggers" / "journal.jsonl"


@pytest.fixture(autouse=True)
def _all_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[Journal] = []
    begin = Journal.__init__

    def noted(self: Journal, path: Path) -> None:
        begin(self, path)
        opened.append(self)

    monkeypatch.setattr(Journal, "__init__", noted)
    yield
    for journal in opened:
        journal.close()


def event(number: int) -> dict[str, object]:
    return {"kind": "hook", "id": f"event-{number}", "payload": {"n": number}}


def test_what_was_written_is_there_again(path: Path) -> None:
    journal = Journal(path)
    journal.begin("a", "files", {"": {"since": 1.0}, "old": "1"})
    journal.moved("a", "files", {"new": "2"}, drop=["old"], events=[event(1), event(2)])
    journal.made("a", "event-1", "flow-run")
    journal.close()
    again = Journal(path)
    assert again.cursor("a", "files") == {"": {"since": 1.0}, "new": "2"}
    assert again.pending() == [("a", event(2))]
    assert again.knows("a", "event-1")
    assert again.knows("a", "event-2")
    assert not again.knows("b", "event-1")
    assert path.stat().st_mode & 0o077 == 0


def test_a_record_that_was_cut_off_anywhere_never_was(path: Path) -> None:
    journal = Journal(path)
    journal.moved("a", "hook", {}, events=[event(1)])
    before = path.read_bytes()
    journal.moved("a", "hook", {"k": 1}, events=[event(2)])
    journal.close()
    whole = path.read_bytes()
    for length in range(len(before), len(whole)):
        path.write_bytes(whole[:length])
        cut = Journal(path)
        assert cut.pending() == [("a", event(1))]
        assert cut.cursor("a", "hook") == {}
        cut.moved("a", "hook", {}, events=[event(3)])
        cut.close()
        again = Journal(path)
        assert again.pending() == [("a", event(1)), ("a", event(3))]
        again.close()


def test_a_damaged_record_is_left_out_and_those_around_it_count(path: Path) -> None:
    journal = Journal(path)
    for number in range(3):
        journal.moved("a", "hook", {}, events=[event(number)])
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:40] + b"\xff" + lines[1][41:] + lines[2])
    again = Journal(path)
    assert again.damaged == 1
    again.moved("a", "hook", {}, events=[event(3)])
    assert again.pending() == [("a", event(number)) for number in (0, 2, 3)]


def test_it_does_not_grow_for_ever_and_forgets_nothing_that_counts(path: Path) -> None:
    journal = Journal(path)
    journal.begin("a", "files", {"": {"since": 1.0}})
    journal.moved("a", "hook", {}, events=[event(0)])
    filler = "x" * 2000
    longest = 0
    for number in range(1, 3 * MADE_KEPT):
        journal.moved("a", "files", {"at": number}, events=[{**event(number), "filler": filler}])
        journal.made("a", f"event-{number}", "flow-run")
        longest = max(longest, path.stat().st_size)
    journal.close()
    assert longest < 2 * COMPACT_BYTES
    again = Journal(path)
    assert again.pending() == [("a", event(0))]
    assert again.cursor("a", "files") == {"": {"since": 1.0}, "at": 3 * MADE_KEPT - 1}
    assert again.knows("a", f"event-{3 * MADE_KEPT - 1}")
    assert not again.knows("a", "event-1")


def test_a_process_that_died_while_it_was_made_shorter_loses_nothing(path: Path) -> None:
    journal = Journal(path)
    journal.moved("a", "hook", {}, events=[event(1)])
    path.with_suffix(".partial").write_bytes(b"half a rec")
    journal.compact()
    journal.moved("a", "hook", {}, events=[event(2)])
    journal.close()
    assert Journal(path).pending() == [("a", event(1)), ("a", event(2))]


def test_a_record_that_was_written_counts_where_the_file_cannot_be_made_shorter(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.apps.station.triggers.journal.COMPACT_BYTES", 1)
    journal, away = Journal(path), path.parent.with_name("away")
    path.parent.rename(away)
    journal.moved("a", "hook", {}, events=[event(1)])
    away.rename(path.parent)
    assert journal.pending() == [("a", event(1))]
    journal.close()
    assert Journal(path).pending() == [("a", event(1))]


def test_a_schedule_that_is_gone_is_forgotten(path: Path) -> None:
    journal = Journal(path)
    journal.moved("a", "hook", {}, events=[event(1)])
    journal.moved("b", "hook", {}, events=[event(1)])
    journal.forget("a")
    journal.close()
    again = Journal(path)
    assert again.deployments() == ["b"]
    assert again.pending() == [("b", event(1))]


def test_what_a_full_disk_refuses_never_was(tmp_path: Path) -> None:
    with disk_of(1, tmp_path / "disk") as place:
        journal = Journal(place / "journal.jsonl")
        journal.moved("a", "hook", {}, events=[event(1)])
        ballast = fill(place)
        with pytest.raises(OSError, match="No space left"):
            journal.moved("a", "hook", {"k": 1}, events=[{**event(2), "filler": "x" * 100_000}])
        assert journal.pending() == [("a", event(1))]
        ballast.unlink()
        journal.moved("a", "hook", {}, events=[event(3)])
        journal.close()
        again = Journal(place / "journal.jsonl")
        assert again.pending() == [("a", event(1)), ("a", event(3))]
        assert again.cursor("a", "hook") == {}
        again.close()
