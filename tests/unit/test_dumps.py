"""Databases for Prefect and MLflow are loaded from dumps of what their migrations make."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from regrow.infra.machine.sqlite import is_current, load_dump, revision
from regrow.infra.mlflow import database as mlflow
from regrow.infra.prefect import home as prefect

FOLDERS = {"prefect": prefect.MIGRATIONS, "mlflow": mlflow.MIGRATIONS}
DUMPS = {"prefect": prefect.DUMP, "mlflow": mlflow.DUMP}
MIGRATED = "import sys, pathlib, tests.dumps; tests.dumps.migrated(pathlib.Path(sys.argv[1]))"
OLDEST = """BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL);
INSERT INTO "alembic_version" VALUES('{}');
COMMIT;
"""


def content(database: Path) -> tuple[str | None, dict[str, list[str]]]:
    """The last migration, and the words of each table and index: Alembic writes the constraints of
    a table in any order.
    """
    with closing(sqlite3.connect(database)) as connection:
        made = connection.execute("select name, coalesce(sql, '') from sqlite_master").fetchall()
    return revision(database), {name: sorted(re.findall(r"\w+", sql)) for name, sql in made}


def test_a_loaded_database_is_what_the_installed_migrations_make(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MIGRATED, str(tmp_path)], check=True, capture_output=True)
    for package, folder in FOLDERS.items():
        loaded = tmp_path / f"{package}-loaded.db"
        load_dump(loaded, DUMPS[package], package, folder)
        assert content(loaded) == content(tmp_path / f"{package}.db"), "run `make dumps`"
        assert is_current(loaded, package, folder)
        assert loaded.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_that_does_not_know_the_migration_of_the_dump_gets_an_empty_file(
    tmp_path: Path, package: str
) -> None:
    (tmp_path / "newer.sql").write_text(OLDEST.format("ffffffffffff"))
    load_dump(tmp_path / "db", tmp_path / "newer.sql", package, FOLDERS[package])
    assert (tmp_path / "db").read_bytes() == b""
    assert not is_current(tmp_path / "db", package, FOLDERS[package])


@pytest.mark.parametrize("content", [None, b"", b"SQLite format 3\0" + b"\1" * 5000])
def test_a_file_without_a_known_migration_is_not_current(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "db").write_bytes(content)
    assert not is_current(tmp_path / "db", "prefect", FOLDERS["prefect"])
    assert (tmp_path / "db").exists() == (content is not None), "looking makes no file"


def test_mlflow_migrates_a_dump_of_an_older_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole.db"
    mlflow.make_sure_of(f"sqlite:///{whole}", None)
    (tmp_path / "newer.sql").write_text(OLDEST.format("ffffffffffff"))
    monkeypatch.setattr(mlflow, "DUMP", tmp_path / "newer.sql")
    mlflow.make_sure_of(f"sqlite:///{tmp_path / 'migrated.db'}", None)
    assert content(tmp_path / "migrated.db") == content(whole)
