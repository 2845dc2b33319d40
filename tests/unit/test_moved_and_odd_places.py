"""State roots with any name, and folders that were moved: where the services keep their files, and
what is made of old ones.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from regrow.infra.log.log import Log
from regrow.infra.machine import sqlite
from regrow.infra.mlflow import database as mlflow_database
from regrow.infra.prefect.server import replaced
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import read_spec
from regrow.infra.stores.local import LocalStore
from regrow.infra.stores.pages import open_pages
from regrow.search.errors import SpecError
from regrow.search.events import encode
from regrow.tasks.errors import UserError
from tests.unit.fresh import printed
from tests.unit.simulated import created, opened

ODD = (
    "why?",
    "a#b",
    "p%41c",
    'it\'s "so"',
    "x:/y",
    "new\nline",
    "~me",
    "-v",
    "s p a c e",
    "é" * 60,
    "?#%&;=+@\\",
)
UUID = "0b5c7f0e-8a51-4a53-9c0a-55d1f7b9a1aa"


def test_a_path_that_no_database_can_have_is_refused_at_once(tmp_path: Path) -> None:
    def writable(length: int) -> Places:
        long = str(tmp_path)
        while (left := length - len(long)) > 0:
            long += "/" + "d" * min(left - 1, 200 if left > 203 else left - 1)
        return Places.at(long).writable()

    longest = writable(500 - len("/.services/prefect/prefect.db")).services / "prefect"
    longest.mkdir()
    sqlite3.connect(longest / "prefect.db").close()
    with pytest.raises(UserError, match="is 1 bytes longer than SQLite opens"):
        writable(501 - len("/.services/prefect/prefect.db"))


def test_a_command_names_the_state_where_the_default_is_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("REGROW_STATE", str(tmp_path / "a-file"))
    assert Places.at(str(state)).command("show", "x") == f"regrow show x --state {state}"
    monkeypatch.delenv("REGROW_STATE")
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()  # such as the folder of the code, while an experiment runs
    assert Places.at(str(state)).command("show", "x") == f"regrow show x --state {state}"


@pytest.mark.parametrize("name", ODD)
def test_every_name_is_a_place_for_state_and_for_databases(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    places = Places.at(str(tmp_path / name))
    places.store("x").create("log/1", b"one")
    assert places.experiments() == ["x"]
    assert LocalStore(Path(places.address("x"))).read("log/1") == b"one"
    assert Places.at((tmp_path / name).as_uri()) == places
    places.services.mkdir()
    engine = create_engine(places.mlflow_uri)
    with engine.begin() as connection:
        connection.execute(text("create table t (n integer)"))
    engine.dispose()
    assert [file.name for file in places.services.iterdir()] == ["mlflow.db"]
    assert sqlite.file_of(places.mlflow_uri) == places.services / "mlflow.db"


@pytest.mark.parametrize(
    ("state", "endpoint", "name"),
    [
        ("s3://bucket/p", "", "bucket-9ed3a6072c00"),
        ("s3://bucket//p/", "http://127.0.0.1:9000", "bucket-7e534941caea"),
        ("s3://bucket/p?endpoint_url=http://h:1", "", "bucket-20c35510f06f"),
    ],
)
def test_the_services_of_a_bucket_stay_in_the_folder_in_which_they_were(
    state: str, endpoint: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_HOME", str(tmp_path))
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert Places.at(state).common == tmp_path / name


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("file:///srv/a?b", "written %3F"),
        ("file:///srv/a#b", "written %23"),
        ("file://host/srv", "three slashes"),
        ("ftp://host/srv", "no store for 'ftp'"),
        ("~nobody-of-this-name/x", "write the whole path"),
        ("b\udcffd", r"b\\xffd.* is not UTF-8"),
        ("a" * 300, "File name too long"),
    ],
)
def test_a_state_root_that_cannot_be_is_refused_in_words(state: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Places.at(state)


def test_a_file_with_the_name_of_a_new_experiment_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    places = Places.at(str(tmp_path))
    (tmp_path / "night").touch()
    with pytest.raises(UserError, match="night is no folder"):
        places.store("night")


def test_a_state_root_that_is_a_link_to_itself_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="Too many levels of symbolic links"):
        Places.at(str(tmp_path / "loop"))


def test_code_in_a_folder_whose_name_is_not_utf_8_is_refused_in_words(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xffd"))
    folder.mkdir()
    (folder / "x.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match=r"b\\xffd of the code has a path that is not UTF-8"):
        read_spec(folder / "x.yaml")


def test_code_in_the_home_of_nobody_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: x\nworking_dir: ~nobody-of-this-name/x\n")
    with pytest.raises(UserError, match=r"x\.yaml: working_dir: ~nobody.*write the whole path"):
        read_spec(tmp_path / "x.yaml")


def test_a_link_to_itself_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=r"loop cannot be used \(Too many levels"):
        Places.at(str(tmp_path / "loop"))
    with pytest.raises(UserError, match="cannot be read: Too many levels"):
        open_pages(str(tmp_path / "loop")).read("share.json")
    (tmp_path / "x.yaml").write_text("name: x\nworking_dir: loop\n")
    with pytest.raises(SpecError, match="is missing"):
        read_spec(tmp_path / "x.yaml")


@pytest.mark.parametrize("name", ["B", "B?"])
def test_artifacts_of_a_folder_that_was_moved_are_found_where_they_are(
    name: str, tmp_path: Path
) -> None:
    file, old = tmp_path / "mlflow.db", tmp_path / "A" / "mlflow-artifacts"
    with closing(sqlite3.connect(file)) as made, made:
        made.execute("create table experiments (artifact_location text)")
        for table, columns in (
            ("runs", "artifact_uri"),
            ("logged_models", "artifact_location"),
            ("model_versions", "source, storage_location"),
        ):
            made.execute(f"create table {table} ({columns})")
        made.execute(
            "insert into experiments values (?), (?), (?)",
            (f"{old}/0", f"{old}/{UUID}", "s3://mine/mlflow-artifacts/1"),
        )
        made.execute(
            "insert into runs values (?), (?)", (f"{old}/{UUID}/r/artifacts", f"{old}-of-mine/r")
        )
        made.execute("insert into model_versions values (?, null)", (f"{old}/{UUID}/models/m",))
    now = sqlite.uri_of(tmp_path / name / "mlflow-artifacts")
    for _ in range(2):  # the second time there is nothing to do
        mlflow_database.make_sure_of(sqlite.url_of(file), now)
        with closing(sqlite3.connect(file)) as found:
            places = [row[0] for row in found.execute("select artifact_location from experiments")]
            assert places == [f"{now}/0", f"{now}/{UUID}", "s3://mine/mlflow-artifacts/1"]
            assert [row[0] for row in found.execute("select artifact_uri from runs")] == [
                f"{now}/{UUID}/r/artifacts",
                f"{old}-of-mine/r",
            ]
            assert found.execute("select * from model_versions").fetchall() == [
                (f"{now}/{UUID}/models/m", None)
            ]


def test_the_folder_of_the_code_is_found_where_the_state_root_was_moved_with_it(
    tmp_path: Path,
) -> None:
    above = tmp_path / ("long" * 25)
    (above / "B" / "sub").mkdir(parents=True)
    (above / "B" / "sub" / "work.py").write_text("")
    places = Places.at(str(above / "B" / ".regrow"))
    first = created(name="x", working_dir=str(above / "A" / "sub"))
    Log.open(places.store("x")).claim([encode(first), encode(opened(0.0))])
    prepared = prepare(places, "x", None, trials=None, code=None)
    assert prepared.folder == str(above / "B" / "sub")
    assert prepared.changes == [
        f'working_dir was "{above}/A/sub", and is "{above}/B/sub" from now on'
    ]
    (above / "B" / "sub" / "work.py").unlink()
    assert prepare(places, "x", None, trials=None, code=None).folder == str(above / "A" / "sub"), (
        "what is missing is told later"
    )


def database(file: Path, stamped: str) -> Path:
    with closing(sqlite3.connect(file)) as made, made:
        made.execute("create table alembic_version (version_num text)")
        made.execute("insert into alembic_version values (?)", (stamped,))
        made.executemany("insert into alembic_version values (?)", [("x" * 3000,)] * 30)
    return file


@pytest.mark.parametrize("harm", ["cut short", "overwritten", "newer"])
def test_records_that_no_server_can_use_are_set_aside_with_a_line(
    harm: str, tmp_path: Path
) -> None:
    file = database(tmp_path / "prefect.db", "bb2345678901" if harm != "newer" else "ffffffffffff")
    if harm == "cut short":
        os.truncate(file, file.stat().st_size // 2)
    elif harm == "overwritten":
        file.write_bytes(b"something else altogether" * 1000)
    before = file.read_bytes()
    (tmp_path / "prefect.db-wal").write_bytes(b"")
    line = replaced(file)
    (aside,) = tmp_path.glob("prefect.db.aside-????????T??????")
    assert line is not None
    assert f"in {aside} now" in line
    assert aside.read_bytes() == before
    assert not file.exists()
    assert not (tmp_path / "prefect.db-wal").exists()


def test_records_that_are_sound_or_not_there_stay_as_they_are(tmp_path: Path) -> None:
    # a migration that Prefect has, in a file that is not named after it
    file = database(tmp_path / "prefect.db", "bb2345678901")
    assert replaced(file) is None
    assert replaced(tmp_path / "none.db") is None
    assert [path.name for path in tmp_path.iterdir()] == ["prefect.db"]
    assert mlflow_database.replaced(sqlite.url_of(file), "root") is None


def test_only_our_own_file_of_mlflows_is_set_aside(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    file.write_bytes(b"something else altogether" * 1000)
    assert mlflow_database.replaced(sqlite.url_of(file), None) is None
    assert file.exists()
    line = mlflow_database.replaced(sqlite.url_of(file), str(tmp_path / "mlflow-artifacts"))
    assert line is not None
    assert "file is not a database" in line
    assert not file.exists()


def test_records_of_a_newer_mlflow_stay_where_they_are_with_a_line(tmp_path: Path) -> None:
    file = database(tmp_path / "mlflow.db", "ffffffffffff")
    line = mlflow_database.of_another_version(sqlite.url_of(file))
    assert line is not None
    assert f"{file} were made by another version of MLflow" in line
    assert file.exists()
    other = tmp_path / "other.db"
    mlflow_database.make_sure_of(sqlite.url_of(other), None)
    for known in (
        sqlite.url_of(other),
        sqlite.url_of(tmp_path / "none.db"),
        "http://127.0.0.1:5000",
    ):
        assert mlflow_database.of_another_version(known) is None


def test_settings_that_prefect_cannot_read_are_told_with_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text('active = "a"\n[profiles.a]\nPREFECT_SERVER_API_PORT = "abc"\n')
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(file))
    monkeypatch.chdir(tmp_path)
    code = "from regrow.infra.prefect.server import configured_api_url as asked\ntry: asked()\nexcept Exception as e: print(repr(e))"

    def asked() -> str:
        return printed(code)

    told = asked()
    assert f"Prefect cannot read its settings in {file} (" in told
    assert told.startswith("UserError(")
    file.unlink()
    (tmp_path / ".env").write_text("PREFECT_API_KEY=x\n")
    (tmp_path / "prefect.toml").write_text("logging = 3\n")  # the one that is wrong
    assert f"in {tmp_path / 'prefect.toml'} or {tmp_path / '.env'} (" in asked()
