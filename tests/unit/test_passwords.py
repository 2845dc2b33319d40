"""The passwords of a station, and where it may listen."""

import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from regrow.infra.machine import addresses
from regrow.infra.prefect.server import server_environment
from regrow.infra.state import passwords
from regrow.tasks.errors import UserError


def test_passwords_are_made_once_for_their_owner_alone_and_shown_nowhere(tmp_path: Path) -> None:
    assert passwords.read(tmp_path) is None
    made = passwords.make(tmp_path)
    assert passwords.make(tmp_path) == made == passwords.read(tmp_path)
    assert stat.S_IMODE(passwords.file_of(tmp_path).stat().st_mode) == 0o600
    assert [file.name for file in (tmp_path / "station").iterdir()] == ["passwords.json"]
    assert len({made.prefect, made.mlflow, made.page, made.cookies}) == 4
    assert not [
        one
        for one in (made.prefect, made.mlflow, made.page, made.cookies)
        if one in repr(made) or len(one) < 32
    ]
    passwords.file_of(tmp_path).write_text("{}")
    with pytest.raises(UserError, match=r"passwords\.json cannot be read .*delete it"):
        passwords.read(tmp_path)


def test_passwords_that_came_with_a_copied_root_are_not_used_and_those_of_a_root_that_moved_are(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    made = passwords.make(tmp_path / "mine")
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    assert passwords.read(tmp_path / "copy") is None
    new = passwords.make(tmp_path / "copy")
    assert passwords.make(tmp_path / "copy") == new != made
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert passwords.make(tmp_path / "moved") == made


def test_a_file_gets_addresses_without_a_login(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from typing import Any, NoReturn
from regrow.cli import ui
from regrow.infra.state import passwords
print(ui._link(passwords.make(Path({str(tmp_path)!r})))("page", "http://127.0.0.1:1/e/a"))
"""
    command = [sys.executable, "-c", code]
    piped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "/e/a?login=" in piped
    with (tmp_path / "out").open("w") as out:
        subprocess.run(command, stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "http://127.0.0.1:1/e/a\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", None])
def test_the_loopback_is_nowhere_else(host: str | None) -> None:
    assert addresses.beside_loopback(host) is None


def test_the_other_loopback_is_listened_at_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("IPv6 is off")
    assert addresses.beside_loopback("::1") == "::1"
    assert not addresses.is_beyond("::1")
    listening = addresses.listen("::1", 0)
    assert [one.getsockname()[0] for one in listening] == ["127.0.0.1", "::1"]
    for one in listening:
        one.close()
    six = (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", 0, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))
    monkeypatch.setattr(socket, "create_server", _refuses)  # IPv6 is off, but has a name
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [six, four])
    assert addresses.beside_loopback("localhost") is None


def _refuses(*_: Any, **__: Any) -> NoReturn:
    raise OSError(99, "Cannot assign requested address")


@pytest.mark.parametrize("host", ["no such host", "192.0.2.7"])
def test_a_host_that_is_not_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(UserError, match=r"--host: .* is no name or address of this machine"):
        addresses.beside_loopback(host)


def test_a_port_listens_on_the_loopback_and_at_the_host() -> None:
    assert addresses.beside_loopback("127.0.0.3") == "127.0.0.3"
    listening = addresses.listen("127.0.0.3", 0)
    number = listening[0].getsockname()[1]
    assert [one.getsockname() for one in listening] == [
        ("127.0.0.1", number),
        ("127.0.0.3", number),
    ]
    for one in listening:
        socket.create_connection(one.getsockname(), timeout=5).close()
        one.close()
    [alone] = addresses.listen(None, 0)
    with alone:
        assert alone.getsockname()[0] == "127.0.0.1"


def test_prefects_server_has_no_password_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "of another server")
    found = server_environment(tmp_path, "http://127.0.0.1:1/api", schedules=True)
    assert not [name for name in found if "AUTH_STRING" in name]
    assert found["PREFECT_SERVER_UI_API_URL"] == "/api"
