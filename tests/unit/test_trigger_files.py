"""Which files are news, and when: a function of listings and times; and what a pattern finds, in a
folder and in S3.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regrow.apps.station.triggers.files import (
    ABSENT_SECONDS,
    FilesTrigger,
    Found,
    Settling,
    file_list,
    listed,
)
from regrow.apps.station.triggers.trigger import GIVEN
from regrow.infra.stores.s3 import open_s3
from regrow.tasks.errors import UserError


def found(mark: str, modified: float = 0.0) -> Found:
    return Found(mark=mark, size=len(mark), modified=modified)


A, B = found("a"), found("b")


def test_new_files_are_told_together_when_none_of_them_changed_for_a_while() -> None:
    look = Settling(seen={"old": "1"}, settle=60.0).settled
    old = {"old": found("1")}
    assert look(old, 0.0) == []
    assert look({**old, "x": A}, 10.0) == []
    assert look({**old, "x": A}, 69.0) == []
    assert look({**old, "x": A, "y": A}, 69.5) == []  # another one came: all wait
    assert look({**old, "x": A, "y": A}, 129.0) == []
    assert look({**old, "x": B, "y": A}, 129.4) == []  # one is still written to
    assert look({**old, "x": B, "y": A}, 189.5) == ["x", "y"]


def test_a_file_that_vanished_before_it_settled_is_no_event() -> None:
    look = Settling(seen={}, settle=60.0).settled
    assert look({"x": A}, 0.0) == []
    assert look({}, 30.0) == []
    assert look({}, 300.0) == []


def test_a_changed_file_is_news_and_one_that_was_away_for_a_while_is_not() -> None:
    settling = Settling(seen={"x": "a", "y": "a"}, settle=0.0)
    assert settling.settled({"x": B, "y": A}, 0.0) == ["x"]
    assert settling.settled({}, 1.0) == []  # the disk is not mounted
    assert settling.settled({"x": A, "y": A}, 2.0) == []
    settling.settled({"y": A}, 3.0)
    assert settling.gone(3.0 + ABSENT_SECONDS - 1) == []
    assert settling.gone(3.0 + ABSENT_SECONDS) == ["x"]


def test_an_event_has_the_list_as_long_as_prefect_takes_it() -> None:
    few = file_list({"x": A}, ["x"])
    assert few == {"files": [{"path": "x", "size": 1, "modified": 0.0}]}
    many = file_list(
        {f"/data/{n}": A for n in range(10_000)}, [f"/data/{n}" for n in range(10_000)]
    )
    assert many["omitted"] == 10_000 - len(many["files"]) > 0


def test_a_trigger_says_what_its_cursor_becomes(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("1")
    trigger = FilesTrigger(str(tmp_path / "*.csv"), settle=0.0)
    cursor = {GIVEN: {"since": (tmp_path / "old.csv").stat().st_mtime}}
    (tmp_path / "late.csv").write_text("1")
    os.utime(tmp_path / "late.csv", (0, cursor[GIVEN]["since"] + 0.5))
    begun = trigger.poll(cursor)
    assert begun is not None
    assert list(begun.events) == []
    assert begun.put.keys() == {GIVEN, str(tmp_path / "old.csv")}, "later ones are news"
    (tmp_path / "late.csv").unlink()
    cursor |= begun.put
    assert trigger.poll(cursor) is None
    (tmp_path / "new.csv").write_text("12")
    (tmp_path / "new.txt").write_text("12")
    step = trigger.poll(cursor)
    assert step is not None
    [event] = step.events
    assert [(one["path"], one["size"]) for one in event["files"]] == [
        (str(tmp_path / "new.csv"), 2)
    ]
    cursor |= step.put
    assert trigger.poll(cursor) is None


def test_a_pattern_finds_files_and_nothing_can_be_told_of_a_folder_that_is_not_there(
    tmp_path: Path,
) -> None:
    for name in ("a.csv", "b.txt", "below/c.csv", "below/deep/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "below/again").symlink_to(".")  # the same files at longer paths, without end
    (tmp_path / "below/deep/up").symlink_to(tmp_path)

    def names(pattern: str) -> list[str] | None:
        there = listed(str(tmp_path / pattern))
        return None if there is None else sorted(os.path.relpath(path, tmp_path) for path in there)

    assert names("*.csv") == ["a.csv"]
    assert names("") == ["a.csv", "b.txt"]
    assert names("**/*.csv") == ["a.csv", "below/c.csv", "below/deep/d.csv"]
    assert names("below/**") == ["below/c.csv", "below/deep/d.csv"]
    assert names("b.txt") == ["b.txt"]
    assert names("*/c.csv") == ["below/c.csv"]
    assert names("*/*/c.csv") == ["below/again/c.csv"]
    assert names("gone/*.csv") is None
    (tmp_path / "run[1]").mkdir()
    (tmp_path / "run[1]" / "e.csv").touch()
    assert names("run[[]1]") == names("run[[]1]/*.csv") == ["run[1]/e.csv"]


def test_a_pattern_finds_objects_by_their_etags(s3: str) -> None:
    store = open_s3(s3)
    for key in ("in/a.parquet", "in/b.txt", "in/below/c.parquet", "inner.parquet"):
        store.create(key, key.encode())

    def names(pattern: str) -> list[str]:
        return sorted(path.removeprefix(f"{s3}/") for path in listed(f"{s3}/{pattern}") or ())

    assert names("in/*.parquet") == ["in/a.parquet"]
    assert names("in/") == ["in/a.parquet", "in/b.txt", "in/below/c.parquet"]
    assert names("in/**/*.parquet") == ["in/a.parquet", "in/below/c.parquet"]
    assert names("inner.parquet") == ["inner.parquet"]
    before = listed(f"{s3}/in/a.parquet") or {}
    store.delete(["in/a.parquet"])
    store.create("in/a.parquet", b"something else")
    after = listed(f"{s3}/in/a.parquet") or {}
    assert [one.mark for one in before.values()] != [one.mark for one in after.values()]
    assert [one.size for one in after.values()] == [len(b"something else")]


def test_a_bucket_alone_is_refused() -> None:
    with pytest.raises(UserError, match=r"s3://bucket/prefix/\*.parquet"):
        listed("s3://bucket")
