"""Who may read what regrow keeps, at the masks that people have, and whose files it believes."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from regrow.flows.housekeeping.removal import remove
from regrow.infra.machine import locks, private_files
from regrow.infra.machine.sqlite import create_database
from regrow.infra.prefect.settings import own_home, refuse_settings
from regrow.infra.state.driver_lock import driving, runs_here
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.tasks.errors import UserError

ANOTHER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o022, 0o002, 0o000], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_root_that_is_made_is_its_owners_alone(umask: int, tmp_path: Path) -> None:
    places = Places.at(str(tmp_path / "above" / "root")).writable()
    store = LocalStore(tmp_path / "root" / "experiment")
    store.create("log/1", b"x")
    assert [mode(path) for path in (Path(places.root), places.services, tmp_path / "root")] == [
        0o700
    ] * 3
    assert mode(tmp_path / "root" / "experiment" / "log") == 0o777 & ~umask, "whom the root lets in"


def test_a_root_that_a_team_shares_stays_as_it_is_and_its_services_never(
    umask: int, tmp_path: Path
) -> None:
    (tmp_path / ".services").mkdir()
    tmp_path.chmod(0o775)
    (tmp_path / ".services").chmod(0o775)
    places = Places.at(str(tmp_path)).writable()
    assert (mode(tmp_path), mode(places.services)) == (0o775, 0o700)


@as_root
def test_services_of_another_user_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_HOME", str(tmp_path / "home"))
    theirs = tmp_path / "root" / ".services"
    theirs.mkdir(parents=True)
    os.chown(theirs, ANOTHER, ANOTHER)
    places = Places.at(str(tmp_path / "root")).writable()
    assert places.services.parent == tmp_path / "home"
    assert mode(places.services) == 0o700
    assert list(theirs.iterdir()) == []


def test_databases_locks_and_records_are_their_owners_alone(umask: int, tmp_path: Path) -> None:
    places = Places.at(str(tmp_path)).writable()

    def fill(database: Path) -> None:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("create table t (x)")

    create_database(places.services / "a.db", fill)
    with driving(places, "experiment"):
        private_files.replace(places.services / "record", "x")
        private_files.create(places.services / "other", "x")
        made = [path for path in places.services.rglob("*") if path.is_file()]
    assert {path.name for path in made} >= {"a.db", "record", "other", "experiment"}
    assert {mode(path) for path in made} == {0o600}
    assert {mode(path) for path in places.services.rglob("*") if path.is_dir()} == {0o700}


def test_a_lock_follows_no_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (tmp_path / "lock").symlink_to(mine)
    with pytest.raises(OSError, match="symbolic links"):
        locks.acquire(tmp_path / "lock")
    assert not mine.exists()
    with locks.acquire(mine) or mine.open():
        assert locks.is_held(mine)
        assert not locks.is_held(tmp_path / "lock")


@as_root
def test_what_another_user_may_have_locked_tells_nothing(places: Places) -> None:
    with driving(places, "experiment"):
        assert runs_here(places, "experiment")
        os.chown(places.services / "running" / "experiment", ANOTHER, ANOTHER)
        assert not runs_here(places, "experiment")


def test_a_link_in_a_strangers_experiment_leads_no_deletion_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("old", "0" * 32):
        (elsewhere / name).write_text("mine")
        os.utime(elsewhere / name, (0, 0))
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / ".tmp").symlink_to(elsewhere)
    LocalStore(tmp_path / "e").create("log/1", b"x")
    assert {path.name for path in elsewhere.iterdir()} == {"old", "0" * 32}


def test_an_experiment_that_is_a_link_is_not_removed(tmp_path: Path) -> None:
    places, mine = (
        Places.at(str(tmp_path / "root")).writable(),
        LocalStore(tmp_path / "mine" / "other"),
    )
    mine.create("log/1", b"x")
    (tmp_path / "root" / "theirs").symlink_to(tmp_path / "mine" / "other")
    with pytest.raises(
        UserError, match=r"is a symbolic link, to .*/mine/other, so it cannot be removed"
    ):
        remove(places, "theirs")
    assert mine.list("") == ["log/1"]


def test_prefects_home_is_this_processs_and_settings_in_a_state_root_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    places = Places.at(str(tmp_path / "root")).writable()
    home = Path(own_home(places)["PREFECT_HOME"])
    assert (list(home.iterdir()), mode(home)) == ([], 0o700)
    assert not home.is_relative_to(tmp_path)
    inside = tmp_path / "root" / "experiment"
    inside.mkdir()
    for file, text in (
        (".env", "PREFECT_API_URL=x"),
        ("prefect.toml", ""),
        ("pyproject.toml", "[tool.prefect]"),
    ):
        (inside / file).write_text("x = 1" if file != "prefect.toml" else text)
        monkeypatch.chdir(inside)
        (inside / file).write_text(text)
        with pytest.raises(UserError, match=rf"{file} is in the state root .*go to another folder"):
            refuse_settings(places)
        monkeypatch.chdir(tmp_path)
        refuse_settings(places)
        (inside / file).unlink()
