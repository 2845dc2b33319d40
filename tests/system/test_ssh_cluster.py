"""`regrow run --on` and `regrow cluster` with machines over SSH: a laptop and three machines, each a
host of its own, on which agents run.

The state is in a folder that all of them share. What is lost is really lost: hosts are killed, or
cut off, by their first process or their link. They have no systemd: agents run below regrow's own
supervisor.
"""

from __future__ import annotations

import json
import random
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
from regrow.infra.state.agents import Agents
from regrow.infra.state.places import Places
from regrow.search.history import History
from tests.lab import hosts as lab
from tests.lab.hosts import Host, Hosts
from tests.system.hosts import await_

pytestmark = pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made")
ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import os, random, time
def train(trial):
    assert os.environ["WISH"] == "full $filled \\\\ `by` \\"us\\""
    total = float((trial.restored / "total").read_text()) if trial.restored else 0.0
    for step in trial.steps():
        time.sleep(trial.config["wait"])
        total = 0.9 * total + trial.config["x"] * random.Random(trial.number * 1000 + step).random()
        trial.report({"score": total}, checkpoint=lambda folder: (folder / "total").write_text(repr(total)))
"""
WISH = 'full $filled \\ `by` "us"'
REGROW = [sys.executable, "-m", "regrow"]
THERE = ".local/share/regrow/agents"
"""What is sent to a machine, below its home."""


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

    @property
    def project(self) -> Path:
        return self.laptop.home / "my project"

    def write(
        self, name: str, *, wait: float = 0.05, trials: int = 4, steps: int = 20, **keys: Any
    ) -> None:
        self.project.mkdir(exist_ok=True)
        description = {
            "name": "lab",
            "on": "ssh",
            "user": "root",
            "machines": [host.address for host in self.cluster],
            "cpus": 1,
            "python": sys.executable,
            "shared": [str(self.hosts.shared)],
            "env": {"WISH": "$WISH"},
            **keys,
        }
        (self.project / "cluster.yaml").write_text(yaml.safe_dump(description))
        (self.project / "work.py").write_text(TRAIN)
        (self.project / ".env").write_text("TOKEN=hush-5\n")
        spec = {
            "name": name,
            "trainable": "work.py:train",
            "space": {"x": {"uniform": [0.1, 1.0]}, "wait": {"constant": wait}},
            "metric": "score",
            "mode": "max",
            "search": "random",
            "trials": trials,
            "max_steps": steps,
            "state": self.state,
        }
        (self.project / f"{name}.yaml").write_text(yaml.safe_dump(spec))

    def line(self, *words: str) -> list[str]:
        """The command line of what a user types in the project's folder."""
        line = 'cd "my project" && exec "$@"'
        return ["bash", "-c", line, "-", *REGROW, *words]

    def regrow(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.hosts.run(
            self.laptop, *self.line(*words), environment={"WISH": WISH}, check=check, seconds=500
        )

    def begin(self, said: Path, *words: str) -> subprocess.Popen[bytes]:
        return self.hosts.begin(
            self.laptop, *self.line(*words), said=said, environment={"WISH": WISH}
        )

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

    def await_steps(self, name: str, count: int, what: str = "steps of trials") -> None:
        await_(lambda: self.steps(name) >= count, what, seconds=200)

    def begun(self, name: str) -> Counter[str]:
        """How many attempts have begun, by the names of their hosts."""
        there = name in Places.at(self.state).experiments()
        trials = self.history(name).trials if there else []
        return Counter(
            attempt.node
            for trial in trials
            for attempt in trial.attempts
            if attempt.node is not None
        )

    def agents(self, name: str, host: Host) -> list[str]:
        """The agents on a host that have joined, also those that are gone."""
        return [one for one in self.history(name).agents if one.startswith(f"{host.name}-")]

    def losses(self, name: str) -> int:
        """How many attempts were lost."""
        return sum(
            attempt.outcome == "lost"
            for trial in self.history(name).trials
            for attempt in trial.attempts
        )

    def leader(self, name: str) -> Host:
        """The host whose agent leads, once there is one."""
        found = Agents(Places.at(self.state).store(name))

        def host() -> Host | None:
            found.refresh()
            claim = found.claim
            named = [one for one in self.cluster if claim is not None and one.name == claim.host]
            return named[0] if named else None

        return await_(host, "leader")

    def left(self) -> list[str]:
        return [
            f"{host.name}: {line}" for host in self.cluster for line in self.hosts.processes(host)
        ]

    def whole(self, name: str, trials: int, steps: int) -> None:
        """Each step of each trial is there once, with the value of a trial that was never
        interrupted, and all decisions follow from the log.
        """
        view = self.show(name)
        assert view["status"] == "finished", view
        lines = self.here("trials", name, "--history", "--json").splitlines()
        points = [json.loads(line) for line in lines]
        assert Counter((point["trial"], point["step"]) for point in points) == {
            (trial, step): 1 for trial in range(trials) for step in range(1, steps + 1)
        }
        for trial in view["trials"]:
            found = [point["score"] for point in points if point["trial"] == trial["number"]]
            assert found == scores(trial["number"], trial["config"]["x"], steps)
        assert "all as recorded" in self.here("verify", name)


def scores(number: int, x: float, steps: int) -> list[float]:
    """Those of a trial that did all its steps itself."""
    total, found = 0.0, []
    for step in range(1, steps + 1):
        total = 0.9 * total + x * random.Random(number * 1000 + step).random()
        found.append(total)
    return found


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    with lab.lab(tmp_path, 4) as hosts:
        yield Field(hosts, tmp_path)


def test_one_command_sends_what_is_needed_runs_a_search_by_agents_and_leaves_nothing(
    field: Field,
) -> None:
    field.write("sweep", wait=0.5)
    file = field.project / "cluster.yaml"
    written = file.read_text()
    described = yaml.safe_load(written)
    for host in field.cluster:
        field.hosts.run(host, "mkdir", "/root/apart")
    file.write_text(yaml.safe_dump({**described, "shared": [*described["shared"], "/root/apart"]}))
    refused = field.regrow("run", "sweep.yaml", "--on", "cluster.yaml", check=False)
    assert (refused.returncode, field.left()) == (1, [])
    first, *others = described["machines"]
    assert (
        f"shared: /root/apart on {', '.join(others)} is not that of {first}; mount it there"
        in refused.stderr
    )

    file.write_text(written)
    said = field.folder / "said"
    run = field.begin(said, "run", "sweep.yaml", "--on", "cluster.yaml")
    await_(
        lambda: run.poll() is not None or field.steps("sweep") > 8, "steps of trials", seconds=200
    )
    assert run.poll() is None, said.read_text()
    assert "to much data: .env;" in said.read_text()
    shown = field.regrow("cluster", "status", "cluster.yaml").stdout
    assert shown.startswith("sweep: 3 running\n"), shown
    await_(lambda: len(field.begun("sweep")) == 3, "a trial on each machine")
    lines = [line for host in field.hosts.all for line in field.hosts.processes(host)]
    assert not [line for line in lines if "hush-5" in line or "filled" in line]
    sent = [path for host in field.cluster for path in (host.home / THERE).rglob("*")]
    assert not [path for path in sent if path.name == ".env"]
    assert {path.stat().st_mode & 0o077 for path in sent if path.name == "environment"} == {0}
    assert run.wait(200) == 0, said.read_text()
    assert "sweep finished: 4 of 4 trials (4 done)" in said.read_text()
    await_(lambda: not field.left(), "the end of the agents")
    more = field.regrow("run", "sweep.yaml", "--on", "cluster.yaml", "--trials", "5")
    assert "sweep finished: 5 of 5 trials (5 done)" in more.stdout
    field.whole("sweep", 5, 20)

    await_(lambda: not field.left(), "the end of the agents")
    ended = field.regrow("cluster", "down", "cluster.yaml")
    assert "nothing of lab is left on 3 machines" in ended.stderr
    assert not [host for host in field.cluster if (host.home / THERE / "lab").exists()]


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # two minutes for each trial, and what is lost
def test_a_laptop_that_vanishes_a_machine_that_is_cut_off_and_the_leaders_loss_cost_no_step_twice(
    field: Field,
) -> None:
    field.write("alone", wait=0.5, trials=6, steps=240)
    field.regrow("cluster", "submit", "cluster.yaml", "alone.yaml")
    field.hosts.kill(field.laptop)
    await_(lambda: len(field.begun("alone")) == 3, "a trial on each machine", seconds=120)
    first = field.leader("alone")
    apart = next(host for host in field.cluster if host is not first)

    field.hosts.cut(apart)
    await_(lambda: field.losses("alone"), "loss of the attempt", seconds=120)
    field.hosts.heal(apart)
    begun = field.begun("alone")[apart.name]
    await_(lambda: field.begun("alone")[apart.name] > begun, "a trial there again", seconds=120)
    assert field.leader("alone") is first
    (agent,) = field.agents("alone", apart)
    record = field.history("alone").agents[agent]
    assert record.joined.t > record.first, "its next node is in the log"

    begun = field.begun("alone")[apart.name]
    field.hosts.kill(first)
    await_(lambda: field.leader("alone") is not first, "the next leader", seconds=120)
    await_(lambda: field.begun("alone")[apart.name] > begun, "a trial there again", seconds=300)
    field.hosts.boot(first)
    field.hosts.boot(field.laptop)
    again = field.regrow("cluster", "submit", "cluster.yaml", "alone.yaml").stderr
    assert "alone has agents already on " in again
    assert f"alone: starting 1 agent on {first.address}\n" in again
    await_(lambda: len(field.agents("alone", first)) == 2, "the agent of the one that came back")

    followed = field.regrow("cluster", "attach", "cluster.yaml", "alone")
    assert "alone finished: 6 of 6 trials (6 done)" in followed.stdout
    field.whole("alone", 6, 240)
    await_(lambda: not field.left(), "the end of the agents")


@pytest.mark.nightly
def test_agents_that_are_told_to_leave_lose_no_step_and_a_machine_that_is_off_is_named(
    field: Field,
) -> None:
    field.write("leave", wait=0.5, trials=3, steps=40)
    said = field.folder / "said"
    run = field.begin(said, "run", "leave.yaml", "--on", "cluster.yaml")
    await_(lambda: len(field.begun("leave")) == 3, "a trial on each machine", seconds=120)
    seen = field.steps("leave")
    field.await_steps("leave", seen + 6)
    off = next(host for host in field.cluster if host is not field.leader("leave"))
    field.hosts.cut(off)
    asked = field.regrow("cluster", "down", "cluster.yaml", check=False)
    assert (asked.returncode, "no terminal to confirm" in asked.stderr) == (2, True)
    refused = field.regrow("cluster", "down", "cluster.yaml", "--yes", check=False)
    assert refused.returncode == 1
    assert f"this is left, or may be: {off.address}: cannot be reached (" in refused.stderr
    field.hosts.heal(off)
    ended = field.regrow("cluster", "down", "cluster.yaml", "--yes")
    assert "nothing of lab is left on 3 machines" in ended.stderr
    assert field.left() == []
    assert not [host for host in field.cluster if (host.home / THERE / "lab").exists()]
    assert run.wait(60) == 3, said.read_text()
    assert "leave is not finished; `regrow run leave.yaml --on cluster.yaml" in said.read_text()
    wasted = field.show("leave")["wasted_steps"]

    again = field.regrow("run", "leave.yaml", "--on", "cluster.yaml")
    assert "leave finished: 3 of 3 trials (3 done)" in again.stdout
    field.whole("leave", 3, 40)
    assert field.show("leave")["wasted_steps"] == wasted


@pytest.mark.nightly
@pytest.mark.skipif(bool(lab.why_no_systemd()), reason=lab.why_no_systemd() or "systemd can run")
def test_with_systemd_a_machine_that_reboots_takes_part_again_and_nothing_stays_enabled(
    tmp_path: Path,
) -> None:
    with lab.lab(tmp_path, 3, systemd=True) as hosts:
        field = Field(hosts, tmp_path)
        field.write("units", wait=0.5, trials=2, steps=80)
        said = field.regrow("cluster", "submit", "cluster.yaml", "units.yaml").stderr
        assert "without a user manager of systemd" not in said
        await_(lambda: len(field.begun("units")) == 2, "a trial on each machine", seconds=120)
        (file,) = (field.cluster[0].home / ".config/systemd/user").glob(
            "regrow-lab.units.*.service"
        )
        off = field.cluster[1]
        hosts.kill(off)
        hosts.boot(off)
        await_(lambda: len(field.agents("units", off)) == 2, "its next agent", seconds=120)
        followed = field.regrow("cluster", "attach", "cluster.yaml", "units")
        assert "units finished: 2 of 2 trials (2 done)" in followed.stdout
        await_(lambda: not [line for line in field.left() if "regrow" in line], "end of the agents")
        wanted = [host.home / ".config/systemd/user/default.target.wants" for host in field.cluster]
        await_(lambda: not [f for folder in wanted for f in folder.glob("*")], "no enabled unit")
        field.whole("units", 2, 80)
        field.regrow("cluster", "down", "cluster.yaml")
        assert not file.exists()
