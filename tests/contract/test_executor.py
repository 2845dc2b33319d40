"""What the flow relies on in whatever runs attempts: the Executor port, on Ray workers and in
threads of this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import ray

from regrow.flows.coordinator.actor import RayCoordinatorClient, start_coordinator
from regrow.infra.ray import groups
from regrow.infra.ray.cluster import connect, disconnect
from regrow.infra.ray.executor import SPOILED_SECONDS, RayExecutor, RayShared
from regrow.infra.ray.nodes import Nodes
from regrow.infra.stores.local import LocalStore
from regrow.search.needs import Needs
from regrow.search.spec import Spec
from regrow.tasks.ports.executor import AttemptLost, ExecutionResult, Executor
from regrow.tasks.ports.messages import Assignment, Job, Shared
from regrow.tasks.ports.store import Store
from tests.faults.executor import HereExecutor
from tests.unit.office import Bench, Office, opening_of

WORK = """
import time
from pathlib import Path

def train(trial):
    print("hello from", trial.number)
    for step in trial.steps(until=3):
        trial.report({"score": step})
        if trial.number == 1:
            raise ValueError("the user's mistake")
        while trial.number == 2 and not Path("FOLDER", "go").exists():
            time.sleep(0.02)
"""


@dataclass
class Place:
    """An executor with what was submitted to it: the attempts of four trials that a coordinator has
    started.
    """

    executor: Executor
    assignments: list[Assignment]

    def submit(self, trial: int) -> Any:
        (assignment,) = [one for one in self.assignments if one.trial == trial]
        return self.executor.submit(assignment, task_run=f"run-{trial}")

    def outcome(self, handle: Any) -> ExecutionResult:
        async def awaited() -> ExecutionResult:
            return await self.executor.outcome(handle)

        return asyncio.run(asyncio.wait_for(awaited(), 120))


def spec_in(folder: Path) -> Spec:
    (folder / "work.py").write_text(WORK.replace("FOLDER", str(folder)))
    return Spec.parse(
        {
            "name": "contract",
            "trainable": f"{folder}/work.py:train",
            "metric": "score",
            "mode": "max",
            "trials": 4,
            "concurrency": 4,
            "max_steps": 3,
            "search": "random",
            "retries": {"error": 0},
            "space": {"x": {"uniform": [0, 1]}},
            "resources": {"cpu": 0.5},
        }
    )


@pytest.fixture(params=["ray", "here"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    spec, store = spec_in(tmp_path), LocalStore(tmp_path / "store")
    job = Job.of(spec, folder=str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if request.param == "here":
        office = Office(
            slots=4, store=store, **{k: v for k, v in spec.to_json().items() if k != "name"}
        )
        shared = Shared(job=job, coordinator=office, store=store, host=Bench())
        with HereExecutor(shared) as executor:
            yield Place(executor, list(office.instructions().submit))
            (tmp_path / "go").touch()
        office.close()
        return
    with on_ray(spec, job, store) as made:
        yield made
        (tmp_path / "go").touch()


@contextmanager
def on_ray(spec: Spec, job: Job, store: Store) -> Iterator[Place]:
    connect(cpus=2, env={})
    try:
        opening = opening_of(spec, id=str(uuid4()), slots=4)
        coordinator, _ = start_coordinator(store, opening, name="contract")
        nodes = Nodes()
        with nodes.watched():
            shared = RayShared(job=job, coordinator=RayCoordinatorClient(coordinator), store=store)
            yield Place(
                RayExecutor(shared, nodes),
                list(ray.get(coordinator.instructions.remote(5.0)).submit),
            )
    finally:
        disconnect()


def test_every_attempt_has_an_outcome(place: Place, tmp_path: Path) -> None:
    done, failed, cancelled, last = (place.submit(trial) for trial in range(4))

    carried = place.outcome(done)
    assert [(f.ended.trial, f.ended.outcome, f.ended.step) for f in carried.finished] == [
        (0, "done", 3)
    ]
    assert not carried.fenced

    # What the user's code raises is a value, with its traceback.
    ended = place.outcome(failed).finished[0].ended
    assert (ended.outcome, ended.cause) == ("failed", "error")
    assert "ValueError: the user's mistake" in ended.trace

    place.executor.cancel(cancelled)
    with pytest.raises(AttemptLost) as lost:
        place.outcome(cancelled)
    assert lost.value.cause in ("infrastructure", "preempted")
    assert lost.value.message

    # To cancel one that has ended does nothing, and an outcome can be asked for again.
    assert place.outcome(last).finished[0].ended.outcome == "done"
    place.executor.cancel(last)
    assert place.outcome(last).finished[0].ended.outcome == "done"


def test_a_trial_that_allows_itself_twenty_open_files_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, store = spec_in(tmp_path), LocalStore(tmp_path / "store")
    lowers = "import resource\n    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n    print"
    (tmp_path / "work.py").write_text(WORK.replace("print", lowers).replace("FOLDER", "."))
    monkeypatch.chdir(tmp_path)
    with on_ray(spec, Job.of(spec, folder=str(tmp_path)), store) as place:
        assert place.outcome(place.submit(0)).finished[0].ended.outcome == "done"


def test_a_process_that_a_trial_has_spoiled_is_left_after_one_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, store = spec_in(tmp_path), LocalStore(tmp_path / "store")
    spoils = "import tempfile\ntempfile.TemporaryFile = None\n"  # and whatever else we call
    (tmp_path / "work.py").write_text(f"{spoils}{WORK.replace('FOLDER', '.')}")
    monkeypatch.chdir(tmp_path)
    with on_ray(spec, Job.of(spec, folder=str(tmp_path)), store) as place:
        assert place.outcome(place.submit(0)).finished[0].ended.outcome == "done"
        with pytest.raises(AttemptLost, match="could not run it: TypeError"):
            place.outcome(place.submit(1))
        time.sleep(SPOILED_SECONDS * 2)
        assert place.outcome(place.submit(3)).finished[0].ended.outcome == "done"


def test_a_process_whose_functions_a_trial_has_replaced_runs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, store = spec_in(tmp_path), LocalStore(tmp_path / "store")
    replaces = """
    import json, os, sys, time
    (Path("FOLDER") / str(trial.number)).write_text(str(os.getpid()))
    if trial.number == 0:
        time.time, json.dumps = (lambda: 0.0), None
        for name in [name for name in sys.modules if name.startswith("regrow")]:
            del sys.modules[name]
"""
    text = f"{WORK}{replaces}".replace("FOLDER", str(tmp_path))
    (tmp_path / "work.py").write_text(text.replace("trial.number == 1", "False"))
    (tmp_path / "go").touch()
    monkeypatch.chdir(tmp_path)
    with on_ray(spec, Job.of(spec, folder=str(tmp_path)), store) as place:
        for trial in range(4):
            assert place.outcome(place.submit(trial)).finished[0].ended.outcome == "done"
    first, *others = [(tmp_path / str(trial)).read_text() for trial in range(4)]
    assert first not in others
    assert len(set(others)) < 3, "a process that is as it was runs further trials"


def test_an_attempt_gets_its_placement_group_while_the_one_before_is_still_being_removed() -> None:
    connect(cpus=2, env={})
    try:
        needs = Needs(bundles=({"CPU": 0.5},), strategy="PACK")
        first, second = (groups.make(needs, name="trial-0000", selector=None) for _ in range(2))
        assert first.wait(60)
        assert second.wait(60)
    finally:
        disconnect()
