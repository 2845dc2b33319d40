"""A node is cut off in silence, and later it is there again: the lease decides, and who lost it can do no harm.

Three hosts (network namespaces), one link to cut. The driver is on one, its trial on one of the two others.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.machine.sqlite import copy_database
from regrow.infra.prefect.server_settings import template
from tests.system.conftest import Desk
from tests.system.hosts import Host, RayCluster, await_, network, why_not
from tests.system.test_main_job import check_whole, mlflow

PREFECT_PORT, STEPS = 4200, 600
TRAIN = """
import os, time
from pathlib import Path

DIARY = Path("FOLDER")


def train(trial):
    total = float((trial.restored / "total").read_text()) if trial.restored else 0.0
    for step in trial.steps():
        if trial.attempt == 1:
            time.sleep(0.2)  # all its steps would take two minutes: it does not end by itself
        while trial.attempt > 1 and step > 100 and not (DIARY / "mended").exists():
            time.sleep(0.05)
        total += trial.config["x"]
        (DIARY / f"attempt-{trial.attempt}").write_text(f"{os.getpid()} {step}")
        trial.report({"score": total}, checkpoint=lambda folder: (folder / "total").write_text(repr(total)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Three hosts with a Ray cluster across them; the driver and Prefect's server live on the first, which has no slots."""

    desk: Desk
    head: Host
    workers: dict[str, Host]
    """By Ray's id of the node."""
    cluster: RayCluster
    diary: Path
    """A folder that all hosts see, in which each attempt writes down its process and its step."""

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Starts `regrow ...` on the driver's host."""
        command = self.head.command(sys.executable, "-m", "regrow", *map(str, arguments))
        return subprocess.Popen(
            command, cwd=self.desk.folder, env=self.cluster.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
        )

    def written(self, attempt: int) -> tuple[int, int]:
        """The process of an attempt and its last step; (0, 0) before its first."""
        with suppress(OSError, ValueError):
            process, step = (self.diary / f"attempt-{attempt}").read_text().split()
            return int(process), int(step)
        return 0, 0

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Those events of a kind that are in the log by now."""
        with suppress(OSError, json.JSONDecodeError):
            return [e for e in self.desk.events(name) if e["event"] == kind]
        return []


@pytest.fixture
def site(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Site]:
    """`request.param`: variables of Ray's head node, and the slots of each worker."""
    if reason := why_not():
        pytest.skip(reason)
    settings, slots = request.param
    temporary = Path(tempfile.mkdtemp(prefix="rg", dir="/tmp"))  # Ray's sockets need a short path
    diary = temporary / "diary"
    diary.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        with network(3) as (head, *others):
            url = f"http://{head.address}:{PREFECT_PORT}/api"
            own = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "REGROW_CLOUD": "none"}
            environment = {**desk.environment, **own, "PREFECT_HOME": str(temporary / "prefect")}
            (temporary / "prefect").mkdir()
            if template().exists():  # its own migrations take 10 s
                copy_database(template(), temporary / "prefect" / "prefect.db")
            words = ["server", "start", "--host", head.address, "--port", str(PREFECT_PORT), "--no-ui"]
            server = subprocess.Popen(
                head.command(sys.executable, "-m", "prefect", *words), env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            stack.callback(server.wait)
            ray_cluster = RayCluster.at(temporary, {**environment, "PREFECT_API_URL": url})
            stack.callback(ray_cluster.kill)
            ray_cluster.start("head", address=head.address, cpus=0, on=head, environment=settings)
            workers = {}
            for name, host in zip(("b", "c"), others, strict=True):
                ray_cluster.start(name, address=host.address, cpus=slots, on=host)
                workers[ray_cluster.nodes[name]] = host
            probe = f"import urllib.request as u; u.urlopen('{url}/health', timeout=1)"
            await_(
                lambda: server.poll() is not None
                or subprocess.run(head.command(sys.executable, "-c", probe), capture_output=True, check=False).returncode == 0,
                "Prefect's server",
            )
            assert server.poll() is None
            yield Site(desk=desk, head=head, workers=workers, cluster=ray_cluster, diary=diary)


QUICK_DEATH = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "3"}
"""With these Ray gives a silent node up after some 6 s; its own settings make that 65 s (measured, 2.60)."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("site", "lease", "message"),
    [
        pytest.param(({}, 1), 8, "nothing was heard from it for 8 s", id="the lease ends first", marks=pytest.mark.nightly),
        # The cut node has slots free, so that Ray, which does not know yet, would rather like to place something there.
        pytest.param(({}, 3), 8, "nothing was heard from it for 8 s", id="the lease ends first and the cut node has room"),
        # A node that Ray knows to be lost is that of test_capacity.py, too.
        pytest.param((QUICK_DEATH, 1), 60, "the node was lost", id="Ray gives the node up first", marks=pytest.mark.nightly),
    ],
    indirect=["site"],
)
def test_a_trial_goes_on_elsewhere_and_the_zombie_is_fenced(site: Site, lease: int, message: str) -> None:
    desk = site.desk
    train = TRAIN.replace("FOLDER", str(site.diary))
    file = desk.write(
        "cut", train=train, trials=1, concurrency=1, max_steps=STEPS, lease=lease, checkpoint={"every_steps": 10, "keep_last": 2},
        retries={"preempted": "unlimited", "infrastructure": 0, "error": 0},
    )
    driver = site.start("run", file)
    await_(lambda: len(site.events("cut", "saved")) >= 2 or driver.poll() is not None, "two checkpoints")
    (began,) = site.events("cut", "began")
    cut = site.workers[began["node_id"]]
    cut.cut()
    at_cut = time.time()

    second = await_(lambda: site.events("cut", "began")[1:], "another attempt")[0]
    assert second["node_id"] != began["node_id"]
    await_(lambda: site.written(2)[1] >= second["restored"] + 1, "its first step")
    print(f"new step {time.time() - at_cut:.1f} s after the cut, lease {lease} s")
    (lost,) = site.events("cut", "ended")
    assert (lost["outcome"], lost["cause"]) == ("lost", "preempted")
    assert lost["message"].startswith(message)
    if lease < 30:
        assert lost["t"] - at_cut < lease + 15
    assert second["restored"] == max(e["step"] for e in site.events("cut", "saved") if e["attempt"] == 1)

    # Behind the cut the zombie goes on computing and saving, into the same store.
    zombie, step = site.written(1)
    assert zombie in cut.processes()
    await_(lambda: site.written(1)[1] >= max(step, lost["step"]) + 11, "the zombie's further steps")
    manifests = desk.folder / ".regrow" / "cut" / "manifests"
    unheard = await_(
        lambda: [m for m in manifests.rglob("*") if m.is_file() and not any(m.name in json.dumps(e) for e in site.events("cut", "saved"))],
        "a checkpoint of the zombie's that nobody was told of",
    )
    cut.mend()
    await_(lambda: zombie not in cut.processes(), "the zombie's end")
    (site.diary / "mended").touch()

    said, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, said
    view = check_whole(desk, "cut", 1)
    first, other = view["trials"][0]["attempts"]
    assert (first["outcome"], other["outcome"]) == ("lost", "done")
    assert other["from_step"] == second["restored"]
    assert view["wasted_steps"] == first["to_step"] - other["from_step"]
    x = view["trials"][0]["config"]["x"]
    points = desk.points("cut")
    assert [p["step"] for p in points] == list(range(1, STEPS + 1))
    assert points[-1]["score"] == pytest.approx(STEPS * x)
    assert {p["attempt"] for p in points if p["step"] > second["restored"]} == {2}
    after = [e for e in desk.events("cut") if e.get("attempt") == 1 and e["t"] > lost["t"]]
    assert after == []
    assert not any(manifest.exists() for manifest in unheard)
    current = "select count(*) from metrics join runs using (run_uuid) where lifecycle_stage = 'active' and key = 'score'"
    assert mlflow(desk, current) == [(STEPS,)]
    with closing(sqlite3.connect(site.cluster.temporary / "prefect" / "prefect.db")) as database:
        assert database.execute("select name, run_count, state_type from task_run").fetchall() == [("trial-0000", 2, "COMPLETED")]
        states = database.execute("select name from task_run_state order by timestamp").fetchall()
    assert [s for (s,) in states] == ["Pending", "Running", "Retrying", "Running", "Completed"]
