"""What runs in the pods: the hook of one that is to end, the command of a job, and who suspends a
cluster that is idle.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from regrow.infra.clusters.jobs import under_way
from regrow.infra.clusters.kubernetes import idle, job, leave

_RAY = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1) if {obedient} else None)
print("started", flush=True)
while True:
    time.sleep(0.05)
"""


@contextmanager
def ray(folder: Path, *, obedient: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is called as Ray is."""
    program = folder / "ray"
    program.write_text(_RAY.format(obedient=obedient))
    with subprocess.Popen(
        [sys.executable, str(program), "start", "--head", "--block"], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (leave, job):
        monkeypatch.setattr(module, "LEAVING", tmp_path / "leaving")
    return tmp_path / "leaving"


def test_the_hook_finds_what_started_ray_and_nothing_else(tmp_path: Path) -> None:
    for process, words in {
        "1": "/bin/bash\0-c\0--\0ulimit -n 65536; ray start --head --block\0",
        "20": "/opt/venv/bin/python\0/opt/venv/bin/ray\0start\0--head\0--block\0--num-cpus=0\0",
        "21": "/opt/venv/bin/ray\0start\0--address=head:6379\0--block\0",
        "23": "/opt/venv/bin/python\0/opt/venv/bin/ray\0kuberay-autoscaler\0",
        "24": "python\0train.py\0start\0ray\0--block\0",
        "25": "ray\0start\0--head\0",
        "sys": "ray\0start\0--block\0",
    }.items():
        (tmp_path / process).mkdir()
        (tmp_path / process / "cmdline").write_text(words)
    (tmp_path / "26").mkdir()  # one that has just ended
    assert sorted(leave.started(tmp_path)) == [20, 21]


def test_the_hook_returns_when_ray_has_ended(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray(tmp_path) as process:
        assert process.pid in leave.started()
        # there may be others on the machine of a test
        monkeypatch.setattr(leave, "started", lambda: [process.pid])
        assert leave.leave(30.0) == []
        assert process.wait() == 1
    assert mark.exists()


def test_the_hook_returns_in_time_where_ray_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray(tmp_path, obedient=False) as process:
        monkeypatch.setattr(leave, "started", lambda: [process.pid])
        assert leave.leave(0.2) == [process.pid]


@pytest.mark.parametrize(
    ("code", "leaving", "expected"),
    [
        (0, False, 0),
        (1, False, 0),
        (2, False, 0),
        (4, False, 0),
        (3, False, 0),  # somebody stopped it
        (3, True, 3),  # it was interrupted, as the head goes
        (70, False, 70),
        (-signal.SIGKILL, False, 137),
    ],
)
def test_only_what_another_cluster_would_change_is_a_reason_for_one(
    code: int, leaving: bool, expected: int
) -> None:
    assert job.passed_on(code, leaving)[0] == expected


@pytest.mark.parametrize(("code", "leaving", "expected"), [(2, False, 0), (3, True, 3)])
def test_a_jobs_command_runs_in_the_project(
    code: int,
    leaving: bool,
    expected: int,
    tmp_path: Path,
    mark: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if leaving:
        mark.touch()
    words = [
        sys.executable,
        "-c",
        f"import os, sys; print(os.getcwd(), os.environ['GIVEN']); sys.exit({code})",
    ]
    assert job.main(["--in", str(tmp_path), "--set", "GIVEN=a=b", "--", *words]) == expected
    said = capfd.readouterr()
    assert said.out.strip() == f"{tmp_path} a=b"
    assert said.err.startswith(
        f"regrow: ended with exit code {code}"
        if code == 2
        else "regrow: ended with 3; it continues"
    )


def test_a_cluster_is_idle_when_nothing_has_run_for_so_long() -> None:
    idleness = idle.Idleness(300.0, now=0.0)
    assert [
        idleness.over(busy, now)
        for busy, now in ((False, 200.0), (True, 290.0), (False, 580.0), (False, 591.0))
    ] == [
        False,
        False,
        False,
        True,
    ]


def test_it_suspends_its_own_cluster_and_asks_for_nothing_else() -> None:
    request = idle.suspension("https://10.0.0.1:443", "sweep", "ml", "account-token")
    assert (request.method, request.url) == (
        "PATCH",
        "https://10.0.0.1:443/apis/ray.io/v1/namespaces/ml/rayclusters/sweep",
    )
    assert json.loads(request.body or "") == {"spec": {"suspend": True}}
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert request.headers["Authorization"] == "Bearer account-token"


class _Dashboard(BaseHTTPRequestHandler):
    asked: dict[str, str]
    jobs: list[dict[str, str]]

    def do_GET(self) -> None:
        type(self).asked = {"path": self.path, "authorization": self.headers["Authorization"]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.jobs).encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((), False),
        (("SUCCEEDED", "FAILED", "STOPPED"), False),
        (("SUCCEEDED", "RUNNING"), True),
        (("PENDING",), True),
    ],
)
def test_a_job_or_driver_that_has_not_ended_is_work(
    statuses: tuple[str, ...], expected: bool
) -> None:
    _Dashboard.jobs = [{"status": status} for status in statuses]
    with HTTPServer(("127.0.0.1", 0), _Dashboard) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert under_way(server.server_port, "token") is expected
        thread.join()
    assert _Dashboard.asked == {"path": "/api/jobs/", "authorization": "Bearer token"}
