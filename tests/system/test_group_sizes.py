"""A population whose trials have different numbers of workers exchanges weights."""

from __future__ import annotations

import math
import os

import pytest

from tests.system import shares
from tests.system.conftest import Desk, await_no_process
from tests.system.grouped import END, event, until, write
from tests.system.test_main_job import check_whole

pytestmark = pytest.mark.usefixtures("shared_prefect")


def test_a_population_exchanges_weights_between_trials_of_one_and_of_two_workers(
    desk: Desk,
) -> None:
    """Trial 0 has two workers, trial 1 one. It takes over trial 0's weights, does better with them,
    and gives its own back.
    """
    cpu = math.floor(100 * (os.cpu_count() or 1) / 3) / 100  # three slots
    file = write(
        desk,
        "sizes",
        trials=2,
        points=[{"x": 2.0}, {"x": 0.0}],
        max_steps=12,
        resources={"cpu": cpu, "workers": [1, 2], "reduce": "mean"},
        schedule={"pbt": {"perturbation_interval": 4, "mutate": []}},
    )
    process = desk.start("run", file)
    # trial 1's first score is known after that of trial 0, and so on
    for trial, step in ((0, 4), (1, 8)):
        until(desk, step, trial)
        event(desk, process, "sizes", "saved", trial=trial, step=step)
    until(desk, END, 0)
    event(desk, process, "sizes", "began", trial=0, attempt=2)
    until(desk, END, 1)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said

    check_whole(desk, "sizes", 2)
    done = {0: [0] * 4 + [1] * 4 + [0] * 4, 1: [0] * 4 + [1] * 8}
    assert {(p["trial"], p["attempt"]): p["workers"] for p in desk.points("sizes")} == {
        (0, 1): 2,
        (0, 2): 2,
        (1, 1): 1,
        (1, 2): 1,
    }
    for trial, trials in done.items():
        found = {
            p["step"]: p["score"]
            for p in desk.points("sizes")
            if p["trial"] == trial and p["attempt"] == 2
        }
        whole = [shares.added(step, who, 2.0) for step, who in enumerate(trials, 1)]
        assert found == {step: sum(whole[:step]) for step in found}
        assert max(found) == 12
    assert await_no_process(desk.folder) == []
