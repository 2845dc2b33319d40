"""Schedulers that pause and clone, on a real cluster whose driver is killed: what they decide is
what a simulation decides.
"""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.log.reading import read_events, replay
from regrow.infra.state.places import Places
from regrow.search.planning.simulator import FunctionObjective, simulate
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from regrow.tasks.checkpoint import saving
from regrow.testing import decisions
from tests.system.conftest import Desk, await_no_process

pytestmark = pytest.mark.usefixtures("shared_prefect")

TRAIN = """
import json, math, time


def train(trial):
    path = json.loads((trial.restored / "path.json").read_text()) if trial.restored else []
    x = trial.config["x"]
    for step in trial.steps():
        time.sleep(SECONDS)
        path.append([trial.number, step, x])
        score = round(x * (1 - math.exp(-step / 4)), 9)
        trial.report({"score": score}, checkpoint=lambda folder: (folder / "path.json").write_text(json.dumps(path)))
"""


def score(config: dict[str, Any], step: int) -> float:
    """What TRAIN reports."""
    return round(float(config["x"]) * (1 - math.exp(-step / 4)), 9)


# Each scheduler is killed at every event in tests/faults/test_every_pair.py, in one process; by day the
# driver of a population on a real cluster is killed in test_tune.py.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("schedule", "trials", "max_steps"),
    [
        ("hyperband", 8, 9),
        ({"pbt": {"perturbation_interval": 2}}, 5, 6),
    ],
    ids=["hyperband", "pbt"],
)
def test_a_killed_experiment_decides_what_an_uninterrupted_one_decides(
    desk: Desk, tmp_path: Path, schedule: Any, trials: int, max_steps: int
) -> None:
    file = desk.write(
        "paused",
        train=TRAIN,
        schedule=schedule,
        trials=trials,
        max_steps=max_steps,
        concurrency=1,
        seconds=0.05,
        space={"x": {"uniform": [0.1, 1.0]}},
    )
    spec = Spec.parse(json.loads(file.read_text()))
    wanted = simulate(spec, FunctionObjective(function=score, spec=spec), workers=1)
    assert wanted.history.closed is not None

    process = desk.start("run", file)
    # Not sooner: a kill that costs the checkpoint of a trial that pauses leaves another trial
    # nothing to clone, which is as right.
    desk.await_events("paused", "ended", 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert await_no_process(desk.folder) == []
    assert len(decisions(wanted.events)) > sum(
        e["event"] in ("proposed", "decided", "retired") for e in desk.events("paused")
    )

    desk.run("resume", "paused")
    places = Places.at(str(desk.folder / ".regrow"))
    events = read_events(places.store("paused"))
    assert verify(events).difference is None
    assert decisions(events) == decisions(wanted.events)
    history = replay(places.store("paused"))
    assert [trial.values for trial in history.trials] == [
        trial.values for trial in wanted.history.trials
    ]
    if schedule != "hyperband":
        assert any(trial.changes for trial in history.trials), (
            "nobody was exploited, so nothing was tried here"
        )
    for trial in history.trials:
        weights = tmp_path / f"weights-{trial.number}"
        newest = [c.manifest for _, c in sorted(trial.checkpoints.items(), reverse=True)]
        assert saving.restore(places.store("paused"), newest, weights).skipped == []
        path = [entry[2] for entry in json.loads((weights / "path.json").read_text())]
        assert path == [
            config["x"] for config in history.path(trial.number, max(trial.checkpoints))
        ]
