"""The passwords of a station, and where it may listen."""

import configparser
import os
import socket
import stat
from pathlib import Path

import pytest

from regrow.infra.machine import addresses, locks
from regrow.infra.prefect.server_settings import server_environment
from regrow.infra.state import passwords
from regrow.infra.state.places import Places
from regrow.station import beyond
from regrow.tasks.errors import UserError


def test_passwords_are_made_once_for_their_owner_alone_and_shown_nowhere(tmp_path: Path) -> None:
    assert passwords.read(tmp_path) is None
    made = passwords.make(tmp_path)
    assert passwords.make(tmp_path) == made == passwords.read(tmp_path)
    assert stat.S_IMODE(passwords.file_of(tmp_path).stat().st_mode) == 0o600
    assert [file.name for file in (tmp_path / "station").iterdir()] == ["passwords.json"]
    assert len({made.prefect, made.mlflow, made.page, made.cookies}) == 4
    assert not [one for one in (made.prefect, made.mlflow, made.page, made.cookies) if one in repr(made) or len(one) < 32]
    passwords.file_of(tmp_path).write_text("{}")
    with pytest.raises(UserError, match=r"passwords\.json cannot be read .*delete it"):
        passwords.read(tmp_path)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.5", None])
def test_the_loopback_needs_no_password(host: str | None, tmp_path: Path) -> None:
    places = Places.at(str(tmp_path))
    assert beyond.prepare(places, host) is None
    assert passwords.read(places.services) is None


@pytest.mark.parametrize("host", ["no such host", "192.0.2.7"])
def test_a_host_that_is_not_of_this_machine_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--host: .* is no name or address of this machine"):
        beyond.prepare(Places.at(str(tmp_path)), host)


def test_an_experiment_that_knows_no_password_is_not_cut_off(tmp_path: Path) -> None:
    places = Places.at(str(tmp_path)).writable()
    places.prefect_home.mkdir()
    lock = locks.take(places.prefect_home / "server.lock")
    assert lock is not None
    with lock, pytest.raises(UserError, match="stop it first"):
        beyond.prepare(places, "0.0.0.0")
    assert passwords.read(places.services) is None
    assert beyond.prepare(places, "0.0.0.0") == "0.0.0.0"
    assert passwords.read(places.services) is not None


def test_a_port_listens_on_the_loopback_and_at_the_host() -> None:
    listening = addresses.listen("127.0.0.3", 0)
    number = listening[0].getsockname()[1]
    assert [one.getsockname() for one in listening] == [("127.0.0.1", number), ("127.0.0.3", number)]
    for one in listening:
        socket.create_connection(one.getsockname(), timeout=5).close()
        one.close()
    [alone] = addresses.listen(None, 0)
    with alone:
        assert alone.getsockname()[0] == "127.0.0.1"


def test_prefects_server_asks_for_a_password_only_where_one_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "of another server")
    quiet = server_environment(tmp_path, "http://127.0.0.1:1/api", schedules=True)
    assert not [name for name in quiet if "AUTH_STRING" in name]
    asking = server_environment(tmp_path, "http://127.0.0.1:1/api", schedules=True, auth="regrow:x", host="0.0.0.0")
    assert asking["PREFECT_SERVER_API_AUTH_STRING"] == asking["PREFECT_API_AUTH_STRING"] == "regrow:x"
    assert asking["PREFECT_SERVER_UI_API_URL"] == "/api"


def test_mlflows_settings_follow_the_passwords(tmp_path: Path) -> None:
    first = passwords.make(tmp_path)
    folder = tmp_path / "station"
    found = beyond.mlflow_environment(folder, first, 5000, ["lab", "10.0.0.7"])
    assert "lab:5000" in found["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert "http://10.0.0.7:5000" in found["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")
    file = Path(found["MLFLOW_AUTH_CONFIG_PATH"])
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    said = configparser.ConfigParser()
    said.read(file)
    assert said["mlflow"]["admin_password"] == first.mlflow
    (folder / "mlflow-auth.db").touch()
    beyond.mlflow_environment(folder, first, 5000, ["lab"])
    assert (folder / "mlflow-auth.db").exists()
    passwords.file_of(tmp_path).unlink()
    beyond.mlflow_environment(folder, passwords.make(tmp_path), 5000, ["lab"])
    assert not (folder / "mlflow-auth.db").exists()  # its user has the old one
