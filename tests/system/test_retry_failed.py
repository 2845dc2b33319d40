"""A typo fails every trial; it is mended, and they continue from their checkpoints: in the log, in
Prefect, in MLflow.
"""

from __future__ import annotations

import pytest

from tests.system import counted
from tests.system.conftest import Desk
from tests.system.test_main_job import check_whole, mlflow

TYPO = """
import json, time


def train(trial):
    total = json.loads((trial.restored / "total").read_text()) if trial.restored else 0.0
    for step in trial.steps():
        time.sleep(0.04)  # a task run that was shorter than 0.05 s takes the next trial along
        total += trial.config["x"] if step <= 2 else trial.config["x"] * factr
        trial.report({"score": total}, checkpoint=lambda folder: (folder / "total").write_text(json.dumps(total)))
"""
FAILED = "2 of 2 trials failed: NameError: name 'factr' is not defined; after mending it: regrow resume typo --retry-failed"


@pytest.mark.usefixtures("shared_prefect")
def test_after_a_mended_mistake_failed_trials_go_on_as_further_attempts(desk: Desk) -> None:
    file = desk.write("typo", train=TYPO, trials=2, max_steps=4, checkpoint={"every_steps": 1})
    printed = counted.run(desk, "run", file, expect=1)
    assert "\nNameError: name 'factr' is not defined\n2 trials failed the same way: " in printed
    assert "typo failed: 2 of 2 trials (2 failed)" in printed
    assert printed.splitlines()[-1] == FAILED
    assert desk.show("typo")["status"] == "failed"
    assert desk.look("show", "typo").count(FAILED) == 1

    (desk.folder / "work.py").write_text(TYPO.replace("factr", "1.0"))
    before = desk.events("typo")
    again = desk.run("run", file, expect=1).stdout.splitlines()
    assert (again[0], again[-1]) == ("typo has failed already", FAILED)
    assert desk.events("typo") == before, "nothing was changed by that"

    said = counted.run(desk, "resume", "typo", "--retry-failed").splitlines()
    (line,) = [line for line in said if line.startswith("code: ")]
    assert line.startswith("code: work.py changed since the session of ")
    assert [line for line in said if "tried again" in line] == [
        f"trial {number}, which had failed, is tried again" for number in range(2)
    ]
    view = check_whole(desk, "typo", 2)
    assert [
        [(a["outcome"], a["from_step"], a["to_step"]) for a in trial["attempts"]]
        for trial in view["trials"]
    ] == [[("failed", 0, 2), ("done", 2, 4)]] * 2
    assert view["wasted_steps"] == 0
    assert [session["changed"] for session in view["sessions"]] == [[], ["work.py"]]
    runs = [(run["run_count"], run["state_type"]) for run in desk.task_runs("typo")]
    assert runs == [(2, "COMPLETED")] * 2
    assert mlflow(
        desk, "select status, count(*) from runs where lifecycle_stage = 'active' group by status"
    ) == [("FINISHED", 3)]
    points = "select step, count(*) from metrics where key = 'score' group by step order by step"
    assert mlflow(desk, points) == [(step, 2) for step in range(1, 5)]

    assert (
        "no trial of typo has failed: there is none to be tried again"
        in desk.run("resume", "typo", "--retry-failed").stdout
    )
