"""A database that takes long to make is copied from a template, and made where there is no sound
one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from regrow.infra.machine.sqlite import fill_from_template


def making(database: Path, made: list[str]) -> Callable[[], None]:
    def make() -> None:
        made.append(database.name)
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("create table one (n integer)")

    return make


def tables(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [name for (name,) in connection.execute("select name from sqlite_master")]


def test_the_first_one_is_made_and_leaves_the_template_of_the_second(tmp_path: Path) -> None:
    made: list[str] = []
    for name in ("first.db", "second.db"):
        fill_from_template(
            tmp_path / name, tmp_path / "cache" / "template.db", making(tmp_path / name, made)
        )
        assert tables(tmp_path / name) == ["one"]
    assert made == ["first.db"]


@pytest.mark.parametrize("left", [b"", b"not a database, and long enough to be read as one" * 100])
def test_a_template_that_is_torn_is_made_anew(tmp_path: Path, left: bytes) -> None:
    made: list[str] = []
    template = tmp_path / "template.db"
    fill_from_template(tmp_path / "first.db", template, making(tmp_path / "first.db", made))
    whole = template.read_bytes()
    template.write_bytes(left + whole[: len(whole) // 2])
    fill_from_template(tmp_path / "second.db", template, making(tmp_path / "second.db", made))
    assert made == ["first.db", "second.db"]
    assert tables(tmp_path / "second.db") == tables(template) == ["one"]


def test_a_template_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    made: list[str] = []
    fill_from_template(
        tmp_path / "first.db",
        tmp_path / "cache" / "template.db",
        making(tmp_path / "first.db", made),
    )
    assert tables(tmp_path / "first.db") == ["one"]
