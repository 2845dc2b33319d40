"""`regrow run --on` and `regrow cluster` with machines over SSH: a laptop, a head and two workers,
each a host of its own.

The state is in a folder that all of them share. What is lost is really lost: hosts are killed, or
cut off, by their first process or their link.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.search.history import History
from tests.lab import hosts as lab
from tests.lab.hosts import Host, Hosts
from tests.system.hosts import await_

pytestmark = pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made")
ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import os, time
def train(trial):
    assert os.environ["WISH"] == "fulfilled"
    for step in trial.steps():
        time.sleep(trial.config["wait"])
        trial.report({"loss": (trial.config["x"] - 0.3) ** 2 + 1 / step}, checkpoint=lambda folder: (folder / "x").write_text("x"))
"""
REGROW = [sys.executable, "-m", "regrow"]


@dataclass
class Field:
    """The hosts, and what a user types at the first of them."""

    hosts: Hosts
    folder: Path

    @property
    def laptop(self) -> Host:
        return self.hosts.all[0]

    @property
    def cluster(self) -> list[Host]:
        return self.hosts.all[1:]

    @property
    def state(self) -> str:
        return str(self.hosts.shared / "state")

    def write(
        self,
        name: str,
        *,
        idle: str = "10min",
        wait: float = 0.05,
        trials: int = 4,
        steps: int = 20,
    ) -> None:
        project = self.laptop.home / "project"
        project.mkdir(exist_ok=True)
        head, *workers = (host.address for host in self.cluster)
        description = {
            "name": "lab",
            "on": "ssh",
            "user": "root",
            "head": head,
            "workers": workers,
            "cpus": 1,
            "idle": idle,
            "python": sys.executable,
            "shared": [str(self.hosts.shared)],
            "env": {"WISH": "$WISH"},
        }
        (project / "cluster.yaml").write_text(yaml.safe_dump(description))
        (project / "work.py").write_text(TRAIN)
        spec = {
            "name": name,
            "trainable": "work.py:train",
            "space": {"x": {"uniform": [0, 1]}, "wait": {"constant": wait}},
            "metric": "loss",
            "mode": "min",
            "search": "random",
            "trials": trials,
            "max_steps": steps,
            "state": self.state,
        }
        (project / f"{name}.yaml").write_text(yaml.safe_dump(spec))

    def regrow(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        line = 'cd project && WISH=fulfilled exec "$@"'
        return self.hosts.run(
            self.laptop, "bash", "-c", line, "-", *REGROW, *words, check=check, seconds=500
        )

    def begin(self, said: Path, *words: str) -> subprocess.Popen[bytes]:
        line = 'cd project && WISH=fulfilled exec "$@"'
        return self.hosts.begin(self.laptop, "bash", "-c", line, "-", *REGROW, *words, said=said)

    def here(self, *words: str) -> str:
        """A command on the state, which this machine sees, too."""
        done = subprocess.run(
            [*REGROW, *words, "--state", self.state],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def show(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.here("show", name, "--json"))
        return found

    def history(self, name: str) -> History:
        """What its log says."""
        return replay(Places.at(self.state).store(name), name)

    def steps(self, name: str) -> int:
        """How many steps its trials are at, all together."""
        return (
            sum(trial.step for trial in self.history(name).trials)
            if name in Places.at(self.state).experiments()
            else 0
        )

    def losses(self, name: str) -> int:
        """How many attempts were lost."""
        return sum(
            attempt.outcome == "lost"
            for trial in self.history(name).trials
            for attempt in trial.attempts
        )

    def left(self) -> list[str]:
        return [
            f"{host.name}: {line}" for host in self.cluster for line in self.hosts.processes(host)
        ]

    def whole(self, name: str, trials: int, steps: int) -> None:
        """Each step of each trial is there once, and all decisions follow from the log."""
        view = self.show(name)
        assert view["status"] == "finished", view
        lines = self.here("trials", name, "--history", "--json").splitlines()
        points = Counter(
            (point["trial"], point["step"]) for line in lines for point in [json.loads(line)]
        )
        assert points == {
            (trial, step): 1 for trial in range(trials) for step in range(1, steps + 1)
        }
        assert "all as recorded" in self.here("verify", name)


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    with lab.lab(tmp_path, 4) as hosts:
        yield Field(hosts, tmp_path)


ASKED = """
import json, pathlib, requests
for file in pathlib.Path("/").glob("root/**/station/passwords.json"):
    known = "regrow", json.loads(file.read_text())["prefect"]
    answer = requests.post("http://127.0.0.1:4200/api/task_runs/filter", json={}, timeout=30, auth=known)
    if answer.ok:
        print(answer.text)
        break
"""


def test_one_command_starts_a_cluster_runs_a_search_and_leaves_nothing(field: Field) -> None:
    field.write("sweep", wait=0.5)
    file = field.laptop.home / "project" / "cluster.yaml"
    written = file.read_text()
    described = yaml.safe_load(written)
    for host in field.cluster:
        field.hosts.run(host, "mkdir", "/root/apart")
    file.write_text(yaml.safe_dump({**described, "shared": [*described["shared"], "/root/apart"]}))
    refused = field.regrow("cluster", "up", "cluster.yaml", "--yes", check=False)
    assert (refused.returncode, field.left()) == (1, [])
    workers = ", ".join(described["workers"])
    assert (
        f"shared: /root/apart on {workers} is not that of {described['head']}; mount it there"
        in refused.stderr
    )

    file.write_text(written)
    said = field.folder / "said"
    run = field.begin(said, "run", "sweep.yaml", "--on", "cluster.yaml", "--yes")
    await_(
        lambda: run.poll() is not None or field.steps("sweep") > 8, "steps of trials", seconds=200
    )
    assert run.poll() is None, said.read_text()
    asked = ASKED
    states = [
        one["state_type"]
        for one in json.loads(field.hosts.run(field.cluster[0], sys.executable, "-c", asked).stdout)
    ]
    assert "RUNNING" in states, states
    token = next(field.laptop.home.glob(".local/share/regrow/clusters/lab/token")).read_text()
    assert len(token) >= 64
    assert not [
        line for host in field.hosts.all for line in field.hosts.processes(host) if token in line
    ]
    logs = [
        file
        for host in field.hosts.all
        for file in host.temporary.rglob("*")
        if file.is_file() and file.suffix in (".log", ".out", ".err")
    ]
    assert len(logs) > 10
    assert not [file for file in [*logs, said] if token in file.read_text(errors="replace")]
    assert run.wait(200) == 0, said.read_text()
    assert "sweep finished: 4 of 4 trials (4 done)" in said.read_text()
    assert "nothing of the cluster lab runs any more on 3 machines" in said.read_text()
    assert field.left() == []
    assert {file.name for file in (field.laptop.home / "project" / "sweep").iterdir()} == {
        "report.html",
        "trials.csv",
    }
    field.whole("sweep", 4, 20)


@pytest.mark.nightly
def test_a_laptop_that_vanishes_and_a_machine_that_is_cut_off_cost_nothing_and_the_cluster_ends_by_itself(
    field: Field,
) -> None:
    field.write("alone", idle="20s", wait=0.5, steps=60)
    field.regrow("cluster", "up", "cluster.yaml", "--yes")
    assert (
        "is up; what is missing" in field.regrow("cluster", "up", "cluster.yaml", "--yes").stderr
    )  # and nothing runs twice
    field.regrow("cluster", "submit", "cluster.yaml", "alone.yaml")
    field.hosts.kill(field.laptop)
    await_(lambda: field.steps("alone") > 20, "steps of trials", seconds=120)
    field.hosts.cut(field.cluster[1])
    await_(lambda: field.losses("alone"), "loss of the attempt", seconds=120)
    field.hosts.heal(field.cluster[1])
    await_(lambda: field.history("alone").closed, "end of the experiment", seconds=300)
    field.whole("alone", 4, 60)
    await_(lambda: not field.left(), "end of the cluster", seconds=200)
    field.hosts.boot(field.laptop)
    assert (
        "nothing of the cluster lab is there"
        in field.regrow("cluster", "status", "cluster.yaml").stdout
    )


@pytest.mark.nightly
def test_a_head_that_is_lost_is_brought_up_again_and_the_experiment_goes_on(field: Field) -> None:
    field.write("survivor", wait=0.5, steps=40)
    said = field.folder / "said"
    run = field.begin(said, "run", "survivor.yaml", "--on", "cluster.yaml", "--yes")
    await_(
        lambda: run.poll() is not None or field.steps("survivor") > 20,
        "steps of trials",
        seconds=200,
    )
    assert run.poll() is None, said.read_text()
    field.hosts.kill(field.cluster[0])
    await_(
        lambda: "the connection to the cluster is lost" in said.read_text(),
        "notice of the loss",
        seconds=60,
    )
    field.hosts.boot(field.cluster[0])
    assert run.wait(400) == 0, said.read_text()
    assert "the cluster's head is lost: it is started again" in said.read_text()
    assert field.left() == []
    field.whole("survivor", 4, 40)


@pytest.mark.nightly
def test_machines_that_another_cluster_had_take_this_one_and_it_stays_when_it_was_up_before(
    field: Field,
) -> None:
    field.write("short", steps=5)
    file = field.laptop.home / "project" / "cluster.yaml"
    lab_file = yaml.safe_load(file.read_text())
    file.write_text(
        yaml.safe_dump({**lab_file, "name": "other", "workers": lab_file["workers"][:1]})
    )
    field.regrow("cluster", "up", "cluster.yaml", "--yes")
    field.regrow("cluster", "down", "cluster.yaml", "--yes")
    file.write_text(yaml.safe_dump(lab_file))
    field.regrow("cluster", "up", "cluster.yaml", "--yes")
    ran = field.regrow("run", "short.yaml", "--on", "cluster.yaml", "--yes")
    assert "the cluster stays up, as `regrow cluster up` or --keep left it" in ran.stderr
    assert "more trials: regrow cluster submit cluster.yaml short.yaml --trials 14" in ran.stdout
    assert field.left()
    field.regrow("cluster", "down", "cluster.yaml", "--yes")
    assert field.left() == []
