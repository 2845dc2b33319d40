"""The journal of triggers: whatever a process died over, what was on disk counts, and nothing
else.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.apps.station.triggers.journal import EARLIER, JOURNAL, Journal
from tests.conftest import disk_of, fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "triggers" / JOURNAL


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


def test_what_a_killed_process_was_writing_never_was(path: Path) -> None:
    journal = Journal(path)
    journal.moved("a", "hook", {}, events=[event(1)])
    journal.close()
    code = f"""if True:
        import os, pathlib
        from regrow.apps.station.triggers.journal import Journal
        journal = Journal(pathlib.Path({str(path)!r}))
        with journal._writing() as database:
            database.execute("PRAGMA cache_size=1")  # what is changed goes to the file at once
            for n in range(200):
                database.execute("INSERT INTO events (id, event) VALUES (?, ?)", (n, "x" * 9000))
            os._exit(1)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0
    again = Journal(path)
    assert (again.pending(), again.lost) == ([("a", event(1))], "")


def test_a_damaged_file_is_set_aside_and_told(path: Path) -> None:
    journal = Journal(path)
    for number in range(30):
        journal.moved("a", "hook", {}, events=[event(number)])
    journal.close()
    whole = path.read_bytes()
    for content in (b"no database" * 100, whole[:4096] + b"\xff" * (len(whole) - 4096)):
        path.write_bytes(content)
        again = Journal(path)
        assert again.lost.startswith(f"their journal was damaged, and is now {path}.aside-")
        assert Path(again.lost.rpartition(" ")[2]).read_bytes() == content
        assert again.pending() == []
        again.moved("a", "hook", {}, events=[event(1)])
        again.close()
        assert (Journal(path).lost, Journal(path).pending()) == ("", [("a", event(1))])


def test_the_journal_of_an_earlier_version_is_kept_and_told_once(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(EARLIER).write_text("x")
    kept = path.with_name("journal.aside")
    assert Journal(path).lost.endswith(f"is not read, and is now {kept}")
    assert kept.read_text() == "x"
    assert Journal(path).lost == ""


def test_it_does_not_grow_for_ever_and_forgets_nothing_that_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.apps.station.triggers.journal.MADE_KEPT", 5)
    journal = Journal(path)
    journal.begin("a", "files", {"": {"since": 1.0}})
    journal.moved("a", "hook", {}, events=[event(0)])
    for number in range(1, 50):
        big = {**event(number), "filler": "x" * 20_000}
        journal.moved("a", "files", {"at": number}, events=[big])
        journal.made("a", f"event-{number}", "flow-run")
    journal.close()
    assert path.stat().st_size < 200_000
    again = Journal(path)
    assert again.pending() == [("a", event(0))]
    assert again.cursor("a", "files") == {"": {"since": 1.0}, "at": 49}
    assert [again.knows("a", f"event-{number}") for number in (44, 45, 49)] == [False, True, True]


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
        journal = Journal(place / JOURNAL)
        journal.moved("a", "hook", {}, events=[event(1)])
        ballast = fill(place)
        with pytest.raises(OSError, match="No space left"):
            journal.moved("a", "hook", {"k": 1}, events=[{**event(2), "filler": "x" * 100_000}])
        assert journal.pending() == [("a", event(1))]
        ballast.unlink()
        journal.moved("a", "hook", {}, events=[event(3)])
        journal.close()
        again = Journal(place / JOURNAL)
        assert again.pending() == [("a", event(1)), ("a", event(3))]
        assert again.cursor("a", "hook") == {}
        again.close()
