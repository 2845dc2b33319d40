"""The process of the embedded Prefect server: when it may leave a database's migrations alone."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from regrow.infra.prefect.process import is_current


def stamped(database: Path, revision: str) -> Path:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table alembic_version (version_num varchar(32) not null)")
        connection.execute("insert into alembic_version values (?)", (revision,))
    return database


def test_only_a_database_at_the_revision_of_the_template_needs_no_migrations(
    tmp_path: Path,
) -> None:
    template = stamped(tmp_path / "template.db", "b2")
    assert is_current(Path(shutil.copy(template, tmp_path / "copy.db")), template)
    assert not is_current(stamped(tmp_path / "older.db", "a1"), template)


@pytest.mark.parametrize(
    "content", [None, b"", b"SQLite format 3\0" + b"\1" * 5000], ids=["missing", "empty", "torn"]
)
def test_where_that_cannot_be_known_alembic_is_asked(tmp_path: Path, content: bytes | None) -> None:
    sound, other = stamped(tmp_path / "sound.db", "b2"), tmp_path / "other.db"
    if content is not None:
        other.write_bytes(content)
    assert not is_current(other, sound)
    assert not is_current(sound, other)
    assert not is_current(other, other)
    assert other.exists() == (content is not None), "looking makes no file"
