"""The embedded Prefect server: shared by a folder's users, quick to start, and gone with the last
of them.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from regrow.infra.machine.sqlite import is_current
from regrow.infra.prefect.home import MIGRATIONS
from regrow.infra.prefect.server import PrefectServer, begin, prefect_server
from regrow.tasks.errors import RegrowError, UserError

USER = """
import sys
from pathlib import Path
from regrow.infra.prefect.server import prefect_server
with prefect_server(Path(sys.argv[1])) as server:
    print(server.api_url, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _no_server_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "no-profiles.toml"))
    monkeypatch.chdir(tmp_path)


@contextmanager
def user(home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that uses the server of `home`."""
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def server_pid(home: Path) -> int:
    return int(json.loads((home / "server.json").read_text())["pid"])


def asked(server: PrefectServer, path: str, **body: object) -> http.client.HTTPResponse:
    """What the API or a page of an embedded server answers to who has its password."""
    assert server.auth is not None
    headers = {
        "content-type": "application/json",
        "authorization": f"Basic {base64.b64encode(server.auth.encode()).decode()}",
    }
    data = json.dumps(body).encode() if body else None
    return urllib.request.urlopen(  # type: ignore[no-any-return]  # of http
        urllib.request.Request(f"{server.ui_url}{path}", data=data, headers=headers), timeout=60
    )


def answers(api_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=60):
            return True
    except OSError:
        return False


def wait_until_gone(pid: int, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while (
        Path(f"/proc/{pid}").exists()
        and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]
    ):
        assert time.monotonic() < deadline, f"process {pid} is still there after {seconds} s"
        time.sleep(0.02)


def test_an_embedded_server_is_on_loopback_and_quiet_at_the_given_port_gone_after_use_and_the_same_again(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} .*in use.*choose another"):
            begin(home, port=port)
    with prefect_server(home, port=port) as first:
        assert first.embedded
        assert first.api_url.startswith(f"http://127.0.0.1:{port}/")
        assert answers(first.api_url)
        with pytest.raises(UserError, match=f"already runs on port {port}, not {port + 1}"):
            begin(home, port=port + 1)
        with asked(first, "/") as page:
            assert b"<title>Prefect" in page.read()
        pid = server_pid(home)
        environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
        assert {"DO_NOT_TRACK=1", "PREFECT_SERVER_ANALYTICS_ENABLED=false"} <= set(environment)
        assert first.environment()["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] == "false"
        asked(first, "/api/flows/", name="kept").close()
    assert not Path(f"/proc/{pid}").exists()
    with prefect_server(home) as second, asked(second, "/api/flows/name/kept"):
        assert second.api_url == first.api_url


def test_a_database_that_the_dump_cannot_begin_is_migrated_by_the_server(tmp_path: Path) -> None:
    """As with a release of Prefect that is older than the dump, which leaves the file empty."""
    (tmp_path / "prefect.db").touch()
    assert not is_current(tmp_path / "prefect.db", "prefect", MIGRATIONS)
    with prefect_server(tmp_path) as server:
        asked(server, "/api/flows/", name="kept").close()
    assert is_current(tmp_path / "prefect.db", "prefect", MIGRATIONS)


def test_processes_that_start_at_once_share_a_server_that_outlives_all_but_the_last_of_them(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        command = [sys.executable, "-c", USER, str(tmp_path)]
        users = {}
        for _ in range(4):
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            users[process.pid] = process
        (url,) = {one.stdout.readline().strip() for one in users.values() if one.stdout}
        pid = server_pid(tmp_path)
        starter = users.pop(psutil.Process(pid).ppid())
        starter.kill()
        starter.wait()
        assert answers(url)
        _, leaves = users.popitem()
        leaves.communicate("\n", timeout=60)
        assert leaves.returncode == 0
        assert answers(url)
        with prefect_server(tmp_path) as server:
            assert server.api_url == url
        assert answers(url)
        for process in users.values():
            process.kill()
        wait_until_gone(pid)


def test_nothing_stays_behind_after_the_driver_was_killed_while_the_server_started(
    tmp_path: Path,
) -> None:
    code = (
        "import os, sys; from pathlib import Path; from regrow.infra.prefect.server import begin\n"
    )
    code += "begin(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=30)
    wait_until_gone(server_pid(tmp_path))


def test_a_record_of_a_dead_server_whose_port_another_took_is_not_believed_and_a_killed_one_is_replaced_on_its_port(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        record = {"pid": os.getpid(), "port": port, "api_url": f"http://127.0.0.1:{port}/api"}
        (tmp_path / "server.json").write_text(json.dumps(record))
        with prefect_server(tmp_path) as first:
            assert f":{port}/" not in first.api_url
            assert answers(first.api_url)
            os.kill(server_pid(tmp_path), signal.SIGKILL)
            with user(tmp_path) as (_, url):
                assert url == first.api_url
                assert answers(first.api_url)


def test_a_server_that_fails_to_start_says_why_at_once(tmp_path: Path) -> None:
    (tmp_path / "prefect.db").mkdir()
    with pytest.raises(RegrowError, match=r"server\.log"), prefect_server(tmp_path):
        pass


class Answering(BaseHTTPRequestHandler):
    """A server of the user's."""

    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def users_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("how", ["environment", "profile"])
def test_the_users_own_server_is_adopted(
    how: str, users_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from pathlib import Path; from regrow.infra.prefect.server import prefect_server\n"
    code += "with prefect_server(Path('home')) as s: print(s.api_url, s.embedded)"
    url = f"{users_server}/api"
    if how == "environment":
        monkeypatch.setenv("PREFECT_API_URL", url)
    else:
        profiles = tmp_path / "profiles.toml"
        profiles.write_text(f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{url}"\n')
        monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == [url, "False"]
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:1/api", "refused"),
        ("nonsense", "unknown url"),
        ("{server}", r"404.*end in /api\?"),
        ("http://127.0.0.1:{deaf}/api", ""),
    ],
)
def test_a_configured_server_that_does_not_answer_is_named_with_what_to_do(
    url: str, why: str, users_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        monkeypatch.context() as patch,
    ):
        url = url.format(server=users_server, deaf=deaf.getsockname()[1])
        patch.setenv("PREFECT_API_URL", url)
        with (
            pytest.raises(UserError, match=f"PREFECT_API_URL is '{url}'.*{why}.*unset"),
            prefect_server(tmp_path),
        ):
            pass
