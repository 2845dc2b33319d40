"""An experiment without a head on a real Slurm: a login node and two nodes, each a host of its own,
as a user types it.

What Slurm does to jobs is done by Slurm: time limits, preemption, cancelling, nodes that are down.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
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
from tests.lab import batch, hosts
from tests.lab.batch import Slurm
from tests.system.hosts import await_

pytestmark = pytest.mark.skipif(bool(batch.why_not()), reason=batch.why_not() or "Slurm can run")
ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import json, time

def train(trial):
    total = json.loads((trial.restored / "total").read_text()) if trial.restored else 0
    def save(folder):
        (folder / "total").write_text(json.dumps(total))
    for step in trial.steps():
        time.sleep(trial.config["wait"])
        total += step
        trial.report({"score": trial.config["x"] * total}, checkpoint=save)
"""


@dataclass
class Field:
    """The cluster, and the files of a user in the folder that all nodes share."""

    slurm: Slurm
    folder: Path

    @property
    def shared(self) -> Path:
        return self.slurm.hosts.shared

    @property
    def places(self) -> Places:
        return Places.at(str(self.shared / "state"))

    def write(self, name: str, *, wait: float, trials: int, steps: int, **keys: Any) -> None:
        described = {"name": "lab", "on": "slurm", "shared": [str(self.shared)], **keys}
        (self.shared / "slurm.yaml").write_text(yaml.safe_dump(described))
        (self.shared / "work.py").write_text(TRAIN)
        spec = {
            "name": name,
            "trainable": "work.py:train",
            "space": {"x": {"uniform": [0.1, 1.0]}, "wait": {"constant": wait}},
            "metric": "score",
            "mode": "max",
            "search": "random",
            "trials": trials,
            "max_steps": steps,
            # what is done again after a loss is seen: nothing is saved unless an agent leaves
            "checkpoint": {"every_steps": steps},
            "state": str(self.shared / "state"),
        }
        (self.shared / f"{name}.yaml").write_text(yaml.safe_dump(spec))

    def start(self, name: str) -> tuple[subprocess.Popen[bytes], Path]:
        """`regrow run NAME.yaml --on slurm.yaml`, and where its output is."""
        said = self.folder / f"{name}-{len(list(self.folder.glob('*.said')))}.said"
        words = ("regrow", "run", f"{name}.yaml", "--on", "slurm.yaml")
        return self.slurm.begin(*words, said=said), said

    def history(self, name: str) -> History:
        return replay(self.places.store(name), name)

    def steps(self, name: str) -> int:
        """How many steps its trials are at, all together."""
        if name not in self.places.experiments():
            return 0
        return sum(trial.step for trial in self.history(name).trials)

    def await_steps(self, name: str, count: int, what: str) -> None:
        await_(lambda: self.steps(name) >= count, f"{what}; {self.slurm.jobs()}", seconds=150)

    def agents(self, name: str) -> Agents:
        found = Agents(self.places.store(name))
        found.refresh()
        return found

    def leaders_node(self, name: str) -> str:
        """The node of the agent that leads, once there is one."""
        claim = await_(lambda: self.agents(name).claim, "leader")
        assert claim is not None
        return claim.host

    def on_node(self, node: str) -> list[str]:
        """The jobs on a node."""
        return self.slurm.run("squeue", "-h", "-r", "-w", node, "-o", "%i").split()

    def here(self, *words: str) -> str:
        """A command on the state, which this machine sees, too."""
        return self.slurm.run("regrow", *words, "--state", str(self.shared / "state"))

    def check_whole(self, name: str, trials: int, steps: int) -> None:
        """Each step of each trial is there once with the value of an uninterrupted run, and all
        decisions follow from the log.
        """
        view = json.loads(self.here("show", name, "--json"))
        assert view["status"] == "finished", view
        x = {trial["number"]: trial["config"]["x"] for trial in view["trials"]}
        points = [
            json.loads(line)
            for line in self.here("trials", name, "--history", "--json").splitlines()
        ]
        assert Counter((point["trial"], point["step"]) for point in points) == {
            (trial, step): 1 for trial in range(trials) for step in range(1, steps + 1)
        }
        for point in points:
            total = point["step"] * (point["step"] + 1) / 2
            assert point["score"] == pytest.approx(x[point["trial"]] * total)
        assert "all as recorded" in self.here("verify", name)


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    lab = hosts.Hosts(tmp_path, visible=[ROOT])
    try:
        with batch.slurm(lab, cpus=2) as slurm:
            yield Field(slurm, tmp_path)
    finally:
        lab.stop()


def test_agents_of_a_job_array_run_a_search_that_another_job_takes_the_leaders_node_from(
    field: Field,
) -> None:
    slurm = field.slurm
    keys = {"agents": 3, "cpus": 1, "time": "1h", "memory": "3GB"}
    field.write("other", wait=0.5, trials=3, steps=60, **keys)
    mine = slurm.run("sbatch", "--parsable", "-J", "other", "--hold", "--wrap", "true").strip()
    slurm.run("regrow", "cluster", "submit", "slurm.yaml", "other.yaml")
    shown = slurm.run("regrow", "cluster", "status", "slurm.yaml")
    assert shown.count("  RUNNING  ") + shown.count("  PENDING") == 3, shown
    ended = slurm.run("regrow", "cluster", "down", "slurm.yaml", "--yes")
    assert "nothing of lab is in the queue any more; 3 agents were cancelled" in ended
    assert {job for job, state in slurm.jobs().items() if state != "CANCELLED"} == {mine}

    field.write("sweep", wait=0.5, trials=3, steps=50, **keys)
    run, said = field.start("sweep")
    field.await_steps("sweep", 12, "first steps")
    members = field.agents("sweep").living()
    assert [member.cpus for member in members] == [1, 1, 1]
    assert all(member.ends for member in members)
    assert slurm.run("regrow", "cluster", "status", "slurm.yaml").startswith("sweep: 3 running\n")
    node = field.leaders_node("sweep")
    slurm.run("sbatch", "-p", "high", "-w", node, "--exclusive", "--mem=9000", "--wrap", "sleep 2")
    assert run.wait(150) == 0, said.read_text()
    assert "sweep finished: 3 of 3 trials (3 done)" in said.read_text()
    assert "wasted steps 0" in said.read_text()
    field.check_whole("sweep", 3, 50)


@pytest.mark.nightly
def test_a_search_by_an_array_of_agents_survives_all_that_slurm_does_to_its_elements(
    field: Field,
) -> None:
    slurm = field.slurm
    field.write("sweep", wait=0.5, trials=6, steps=60, agents=3, cpus=1, time="1h", memory="3GB")
    mine = slurm.run("sbatch", "--parsable", "-J", "sweep", "-n1", "--hold", "--wrap", "true")
    run, said = field.start("sweep")
    field.await_steps("sweep", 6, "first steps")
    assert all(member.ends for member in field.agents("sweep").living())
    array = re.search(r"submitted job array (\d+) of 3 agents", said.read_text())
    assert array is not None, said.read_text()
    job = array[1]
    shown = slurm.run("regrow", "cluster", "status", "slurm.yaml")
    assert shown.startswith("sweep: 3 running\n"), shown

    # What Slurm sends near the time limit, to all elements but the last, whose id is the array's.
    slurm.run("scancel", "--signal=USR1", "--batch", f"{job}_1", f"{job}_2")
    await_(
        lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", f"{job}_1"), "requeued element"
    )
    assert slurm.jobs()[f"{job}_3"] == "RUNNING"
    # Of nsenter, which enters the host; Ctrl-C is for what it runs there.
    child = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()[0]
    os.kill(int(child), signal.SIGINT)
    assert run.wait(30) == 3, said.read_text()
    assert "sweep continues on Slurm; `regrow stop sweep" in said.read_text()
    run, said = field.start("sweep")

    field.await_steps("sweep", 50, "steps after the requeue")
    node = field.leaders_node("sweep")
    slurm.run("sbatch", "-p", "high", "-w", node, "--exclusive", "--mem=9000", "--wrap", "sleep 3")
    await_(lambda: field.leaders_node("sweep") != node, "another leader")

    field.await_steps("sweep", 110, "steps after the preemption")
    slurm.run("scancel", f"{job}_1")
    down = slurm.nodes[0].name
    slurm.run("scontrol", "update", f"nodename={down}", "state=down", "reason=test")

    assert run.wait(150) == 0, said.read_text()
    assert f"has agents in the queue already: job array {job}" in said.read_text()
    assert "sweep finished: 6 of 6 trials (6 done)" in said.read_text()
    await_(lambda: set(slurm.jobs().values()) <= {"PENDING", "CANCELLED", "COMPLETED"}, "end")
    assert slurm.jobs()[mine.strip()] == "PENDING"
    assert "wasted steps 0" in said.read_text()
    field.check_whole("sweep", 6, 60)
    assert "no agent of lab runs or waits" in slurm.run("regrow", "cluster", "status", "slurm.yaml")


@pytest.mark.nightly
def test_a_search_outlasts_a_suspended_element_maintenance_and_preemption_that_cancels(
    field: Field,
) -> None:
    slurm = field.slurm
    keys = {"agents": 4, "cpus": 1, "time": "1h", "memory": "3GB", "partition": "spot"}
    field.write("sweep", wait=0.5, trials=4, steps=100, **keys)
    run, said = field.start("sweep")
    field.await_steps("sweep", 12, "first steps")

    leads = field.leaders_node("sweep")
    other = next(node.name for node in slurm.nodes if node.name != leads)
    suspended = field.on_node(other)[0]
    slurm.run("scontrol", "suspend", suspended)
    await_(lambda: "no message came from it" in said.read_text(), "the loss of its trial")
    slurm.run("scontrol", "resume", suspended)

    given = ("starttime=now", "duration=60", "nodes=ALL", "users=daemon", "flags=MAINT,IGNORE_JOBS")
    slurm.run("scontrol", "create", "reservation", "reservationname=service", *given)
    job = suspended.partition("_")[0]
    for element in range(1, 5):  # as near the time limit
        slurm.run("scancel", "--signal=USR1", "--batch", f"{job}_{element}")
    await_(lambda: set(slurm.jobs().values()) == {"PENDING"}, "elements that wait")
    # Elements of one array whose reasons are not known yet may have others.
    status = ("regrow", "cluster", "status", "slurm.yaml")
    await_(lambda: "Reserved for maintenance" in slurm.run(*status), "their reason")
    slurm.run("scontrol", "delete", "reservationname=service")

    term = field.agents("sweep").term
    await_(lambda: field.agents("sweep").term > term, "a leader after the maintenance")
    node = field.leaders_node("sweep")
    slurm.run("sbatch", "-p", "high", "-w", node, "--exclusive", "--mem=9000", "--wrap", "sleep 2")
    assert run.wait(300) == 0, said.read_text()
    assert "sweep finished: 4 of 4 trials (4 done)" in said.read_text()
    assert list(slurm.jobs().values()).count("PREEMPTED") >= 1, slurm.jobs()
    field.check_whole("sweep", 4, 100)
