"""Connecting to Ray: an own cluster that leaves nothing behind, or the user's, which must
answer.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.machine.processes import marked
from regrow.infra.ray.cluster import connect
from regrow.tasks.errors import UserError

PRELUDE = """
import os, sys, time
from regrow.infra.ray.cluster import connect, disconnect, warm_up
from regrow.search.needs import Needs, room

def fits(cluster):
    return room(Needs(bundles=({"CPU": 1.0},)), cluster.nodes())
"""


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter: Ray keeps state that only the end of its process
    clears.
    """
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("RAY_")}, **env},
    )


def succeeds(code: str, **env: str) -> str:
    run = python(code, **env)
    assert run.returncode == 0, run.stderr
    return run.stdout


LOOK = """
import json, ray, signal, subprocess
import psutil

caught, before = [], set(os.environ)
signal.signal(signal.SIGTERM, lambda *_: caught.append(ray.is_initialized()))
cluster = connect(cpus=4, env={"FROM_DRIVER": "yes"})
signal.raise_signal(signal.SIGTERM)
seen = {"slots": fits(cluster), "local": cluster.local}
seen["here"] = sorted({"FROM_DRIVER", "PYTHONBREAKPOINT"} & set(os.environ))
seen["worker"] = ray.get(ray.remote(lambda: dict(os.environ)).remote())
seen["warmed"] = len(ray.get(warm_up(2, ["fractions", "regrow.tasks.errors"])))
known = ray.remote(lambda: "fractions" in sys.modules)
seen["known"] = ray.get([known.remote() for _ in range(2)])
kin = [psutil.Process(), *psutil.Process().children(recursive=True)]
seen["raylet"] = next(" ".join(one.cmdline()) for one in kin if one.name() == "raylet")
seen["heard"] = sorted({(one.name(), each.laddr.ip) for one in kin for each in one.net_connections() if each.laddr and not each.raddr})
stranger = dict(os.environ, RAY_AUTH_TOKEN="0" * 64)
code = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
seen["stranger"] = subprocess.run([sys.executable, "-c", code, cluster.address], env=stranger, capture_output=True, text=True).stderr
disconnect()
signal.raise_signal(signal.SIGTERM)
seen["caught"] = caught
seen["left"] = [ray.is_initialized(), sorted(set(os.environ) - before)]
connect(cpus=1, env={})
seen["second"] = ray.get(ray.remote(lambda: os.environ["RAY_AUTH_MODE"]).remote())
disconnect()
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What a process sees that connects to a cluster of its own, and then to another one."""
    run = python(LOOK)
    assert (run.returncode, run.stderr) == (0, "")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_a_local_cluster_counts_slots_passes_variables_and_warms_workers_up(
    seen: dict[str, Any],
) -> None:
    assert (seen["local"], seen["slots"]) == (True, 4)
    assert seen["worker"]["FROM_DRIVER"] == "yes"
    assert seen["here"] == [], "variables of workers are theirs; breakpoint() is the user's"
    assert (seen["warmed"], seen["known"]) == (2, [True, True])


def test_a_local_cluster_is_on_loopback_reports_nothing_and_wants_its_token(
    seen: dict[str, Any],
) -> None:
    assert {"gcs_server", "raylet"} <= {name for name, _ in seen["heard"]}
    assert {ip.removeprefix("::ffff:") for _, ip in seen["heard"]} == {"127.0.0.1"}
    worker = seen["worker"]
    assert worker["RAY_USAGE_STATS_ENABLED"] == worker["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert (worker["RAY_AUTH_MODE"], len(worker["RAY_AUTH_TOKEN"])) == ("token", 64)
    assert "InvalidAuthToken" in seen["stranger"]


def test_a_raylet_starts_no_agent_and_our_script_for_workers(seen: dict[str, Any]) -> None:
    """With the installed Ray; on another one it starts Ray's own, `tests/unit/test_ray_scripts.py`."""
    assert "dashboard/agent.py" not in seen["raylet"]
    assert "infra/ray/setup_worker.py" in seen["raylet"]


def test_nothing_of_it_stays_in_the_callers_process_and_a_second_one_has_a_token_too(
    seen: dict[str, Any],
) -> None:
    assert seen["caught"] == [True, False], "the caller's handler of SIGTERM is there throughout"
    assert seen["left"] == [False, []]
    assert seen["second"] == "token"


STARTED = """
import psutil
from regrow.infra.ray import private
from regrow.infra.ray.joining import join
from regrow.search.spec import Spec

def raylet():
    return next(
        " ".join(one.cmdline())
        for one in psutil.Process().children(recursive=True)
        if one.name() == "raylet"
    )
"""


def test_a_raylet_that_waits_for_what_is_not_known_here_is_started_again_as_ray_does() -> None:
    out = succeeds(
        STARTED
        + """
import ray._raylet
private.STARTED_SECONDS = 6.0
ray._raylet.persist_port = lambda *_: None  # as if another Ray named the ports otherwise
spec = Spec.parse({"name": "a", "trainable": "a:b", "metric": "m", "mode": "max", "space": {"x": 1}, "trials": 1})
with join(spec, print):
    print("dashboard/agent.py" in raylet(), "infra/ray/setup_worker.py" in raylet(), ray.get(ray.remote(lambda: 7).remote()))
"""
    )
    lines = out.splitlines()
    assert lines[0].startswith("waiting for Ray to start")
    assert re.fullmatch("Ray did not start here: .*; once more", lines[1])
    assert lines[-1] == "True False 7"


def test_a_worker_that_dies_is_no_matter_of_rays_own_words() -> None:
    run = python("""
connect(cpus=1, env={})
import ray
reference = ray.remote(max_retries=0)(lambda: os._exit(1)).remote()
assert ray.wait([reference], timeout=60)[0]
time.sleep(1.0)  # Ray's words come by a thread of its own, within milliseconds
lost = ray.remote(max_retries=0)(lambda: os._exit(1)).remote()
time.sleep(2.0)
del lost  # never asked for: Ray calls that an unhandled error
disconnect()
assert "RAY_IGNORE_UNHANDLED_ERRORS" not in os.environ
""")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_cluster_of_the_callers_own_is_used_and_left_running() -> None:
    succeeds("""
import ray
ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
cluster = connect(env={})
assert fits(cluster) == 3
disconnect()
assert ray.is_initialized()
ray.shutdown()
""")


LOCAL = """
cluster = connect(cpus=2, env={})
import ray
def busy(): os.system("sleep 300")
refs = [ray.remote(busy).options(num_cpus=1).remote() for _ in range(2)]
def mark(): return os.environ["REGROW_CLUSTER"]
print("REGROW_CLUSTER=" + ray.get(ray.remote(mark).options(num_cpus=0).remote()), flush=True)
"""


def wait_until_none_is_marked(mark: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while left := marked(mark):
        names = [
            Path(f"/proc/{pid}/cmdline").read_bytes()[:60]
            for pid in left
            if Path(f"/proc/{pid}").exists()
        ]
        assert time.monotonic() < deadline, names
        time.sleep(0.1)


# Python ends at SIGTERM as at SIGKILL, without a word.
@pytest.mark.parametrize(
    "how",
    [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGINT],
)
def test_nothing_is_left_after_a_signal_to_the_driver_even_with_busy_workers(
    how: signal.Signals,
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + LOCAL + "time.sleep(300)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    with driver:
        try:
            mark = driver.stdout.readline().strip()
            assert mark.startswith("REGROW_CLUSTER=")
            assert len(marked(mark)) >= 6
            driver.send_signal(how)
            driver.wait(timeout=60)
        finally:
            driver.kill()  # `with` waits for it
    wait_until_none_is_marked(mark)


@pytest.mark.parametrize("end", ["disconnect()", ""])
def test_nothing_is_left_after_the_drivers_end(end: str) -> None:
    run = python(LOCAL + end)
    mark = re.search(r"REGROW_CLUSTER=\w+", run.stdout)
    assert mark is not None, run.stderr
    wait_until_none_is_marked(mark.group())


@pytest.fixture
def not_ray() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("ray://127.0.0.1:1", "Connection refused"),
        ("somewhere", "must be host:port"),
        ("no-such-host.invalid:6379", "Name or service|name resolution"),
        ("{not_ray}", "nothing there speaks Ray;"),
    ],
)
def test_a_cluster_that_does_not_answer_is_named_with_what_to_do(
    address: str, why: str, not_ray: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = address.format(not_ray=not_ray)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(
        UserError, match=f"RAY_ADDRESS '{address}'.*({why}).*correct or unset RAY_ADDRESS"
    ):
        connect(env={})


def test_a_cluster_given_by_address_is_joined_and_left_running() -> None:
    succeeds(
        LOCAL
        + """
import subprocess
code = '''
import os
from regrow.infra.ray.cluster import connect, disconnect
from regrow.search.needs import Needs, room
cluster = connect(env={"FROM_GUEST": "yes"}, runtime_env={"env_vars": {"MORE": "too"}})
assert not cluster.local
assert room(Needs(bundles=({"CPU": 1.0},)), cluster.nodes()) == 2
import ray
seen = ray.get(ray.remote(lambda: os.environ["FROM_GUEST"] + os.environ["MORE"]).options(num_cpus=0).remote())
assert seen == "yestoo", seen
disconnect()
'''
guest = dict(os.environ, RAY_ADDRESS=cluster.address)
subprocess.run([sys.executable, "-c", code], env=guest, check=True, timeout=60)
guest["RAY_AUTH_TOKEN"] = "0" * 64
wrong = subprocess.run([sys.executable, "-c", code], env=guest, capture_output=True, text=True, timeout=60)
assert "UserError: No Ray cluster at RAY_ADDRESS" in wrong.stderr, wrong.stderr
assert "InvalidAuthToken" in wrong.stderr, wrong.stderr
assert ray.get(ray.remote(lambda: 1).options(num_cpus=0).remote()) == 1
disconnect()
"""
    )
