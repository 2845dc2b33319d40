"""What Prefect, and the trials' own output, tell of an experiment in which a worker was killed
while two trials printed.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from regrow.infra.prefect.server import prefect_server
from regrow.infra.state.passwords import USER
from regrow.tasks.errors import UserError
from tests.system.conftest import Desk, desk_in
from tests.system.test_losses import kill
from tests.system.test_main_job import check_whole, doubled

TRAIN = """
import json, logging, os, subprocess, sys, time

logging.basicConfig(level=logging.INFO)


def train(trial):
    done = json.loads((trial.restored / "done").read_text()) if trial.restored else 0
    for step in trial.steps():
        time.sleep(0.3)
        name = f"trial {trial.number} attempt {trial.attempt} step {step}"
        print(f"{name} printed")
        print(f"{name} complained", file=sys.stderr)
        logging.getLogger("theirs").info("%s logged", name)
        os.write(1, f"{name} written below Python\\n".encode())
        if step == 1:
            subprocess.run(["sh", "-c", f"echo {name} said by a child"], check=True)
        trial.report(
            {"score": trial.number + step / 100}, checkpoint=lambda folder: (folder / "done").write_text(json.dumps(step))
        )
        if trial.number == 2:
            raise ValueError("bad <luck>")
"""
STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The experiment's desk, what followed it while it ran, and the API of its Prefect server."""

    desk: Desk
    followed: str
    api: str

    def ask(self, what: str, **body: Any) -> Any:
        """The answer to a query of the API."""
        answer = httpx.post(
            f"{self.api}/{what}/filter",
            json=body,
            timeout=30,
            auth=(USER, self.desk.passwords.prefect),
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def run(self, name: str) -> dict[str, Any]:
        """The task run of that name."""
        (found,) = self.ask("task_runs", task_runs={"name": {"any_": [name]}})
        assert isinstance(found, dict)
        return found

    def states(self, name: str) -> list[tuple[str, str]]:
        """Names and messages of a task run's states, in order."""
        auth, asked = (USER, self.desk.passwords.prefect), {"task_run_id": self.run(name)["id"]}
        found = httpx.get(
            f"{self.api}/task_run_states/", params=asked, auth=auth, timeout=30
        ).json()
        return [
            (s["name"], s["message"] or "") for s in sorted(found, key=lambda s: s["timestamp"])
        ]

    def messages(self, name: str) -> list[str]:
        """A task run's logs, in order."""
        wanted = {"task_run_id": {"any_": [self.run(name)["id"]]}}
        return [
            log["message"] for log in self.ask("logs", logs=wanted, sort="TIMESTAMP_ASC", limit=200)
        ]

    def printed(self, trial: int) -> list[dict[str, Any]]:
        """What `regrow logs` has of a trial."""
        return [
            json.loads(line)
            for line in self.desk.look("logs", "story", trial, "--json").splitlines()
        ]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with desk_in(tmp_path_factory.mktemp("story")) as desk:
        file = desk.write(
            "story",
            train=TRAIN,
            trials=3,
            max_steps=STEPS,
            search="random",
            retries={"error": 0},
            checkpoint={"every_steps": 2},
        )
        process = desk.start("run", file)
        desk.await_events("story", "saved", 4, process)
        follower = desk.start("logs", "story", 0, "--follow")
        await_object(desk.folder / ".regrow" / "story" / "logs" / "0" / "1", process)
        kill(desk.folder, "ray::trial-0000")
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, said
        followed, _ = follower.communicate(timeout=30)
        assert follower.returncode == 0, followed
        with prefect_server(desk.folder / ".regrow" / ".services" / "prefect") as server:
            yield Told(desk=desk, followed=followed, api=server.api_url)


def await_object(folder: Path, process: subprocess.Popen[str]) -> None:
    """Returns once the first part of an attempt's output is in the store."""
    while not (folder.is_dir() and any(folder.iterdir())):
        assert process.poll() is None
        time.sleep(0.05)


def test_the_killed_worker_costs_one_attempt_and_at_most_the_steps_since_the_checkpoint(
    told: Told,
) -> None:
    view = check_whole(told.desk, "story", 3)
    first, second = view["trials"][0]["attempts"]
    assert (first["outcome"], second["outcome"]) == ("lost", "done")
    assert second["from_step"] >= 2
    assert first["to_step"] - second["from_step"] <= 2
    assert view["wasted_steps"] == first["to_step"] - second["from_step"]
    assert told.run("trial-0000")["run_count"] == 2
    assert doubled(told.desk) == []


def test_the_task_run_tells_why_it_was_retried_and_from_where(told: Told) -> None:
    first, second = told.desk.show("story")["trials"][0]["attempts"]
    step = second["from_step"]
    assert first["outcome"] == "lost"
    assert step > 0
    states = told.states("trial-0000")
    assert [name for name, _ in states] == [
        "Pending",
        "Running",
        "Retrying",
        "Running",
        "Completed",
    ]
    assert states[0][1].startswith("x=0.")
    assert (
        states[3][1]
        == f"attempt 1 was lost on {first['node']} (the worker process died); continues after step {step}, from its checkpoint"
    )
    assert (
        states[4][1]
        == f"trial 0 done at step {STEPS} (attempt 2, from the checkpoint of step {step})"
    )
    assert told.states("trial-0002")[-1] == (
        "Failed",
        "trial 2 failed at step 1: ValueError: bad <luck>",
    )


def test_task_runs_can_be_found_by_trial_attempt_and_node(told: Told) -> None:
    node = told.desk.show("story")["trials"][0]["attempts"][1]["node"]
    assert set(told.run("trial-0000")["tags"]) == {"trial:0", "attempt:2", f"node:{node}"}
    found = told.ask("task_runs", task_runs={"tags": {"all_": ["attempt:1"]}})
    assert {run["name"] for run in found} == {"trial-0001", "trial-0002"}


def test_the_flow_runs_log_has_what_a_person_wants_to_read(told: Told) -> None:
    wanted = {"task_run_id": {"is_null_": True}}
    logs = [
        log
        for log in told.ask("logs", logs=wanted, sort="TIMESTAMP_ASC", limit=200)
        if log["name"] == "regrow"
    ]
    lines = [log["message"] for log in logs]
    node = told.desk.show("story")["trials"][0]["attempts"][1]["node"]
    step = told.desk.show("story")["trials"][0]["attempts"][1]["from_step"]
    assert lines[0] == "started: 3 trials, up to 2 at a time"
    lost = next(log for log in logs if "lost" in log["message"])
    assert lost["message"].startswith(f"trial 0, attempt 1 on {node}: lost at step ")
    assert lost["message"].endswith(": the worker process died")
    assert lost["level"] == 30
    assert any(
        line.startswith(
            f"trial 0 continues as attempt 2 on {node}, after step {step}, from its checkpoint"
        )
        for line in lines
    )
    assert any(line.endswith("trial 2 failed at step 1: ValueError: bad <luck>") for line in lines)
    assert any(line.startswith("new best: trial 2, score 2.01 at step 1") for line in lines)
    assert lines[-1].startswith("finished: 3 of 3 trials ended (2 done, 1 failed); best: trial 2")


def test_events_that_automations_can_trigger_on(told: Told) -> None:
    events = told.ask("events", filter={"event": {"prefix": ["regrow."]}}, limit=50)["events"]
    by_name = {event["event"]: event for event in events}
    assert {
        "regrow.experiment.started",
        "regrow.trial.best",
        "regrow.trial.lost",
        "regrow.trial.recovered",
        "regrow.trial.failed",
        "regrow.experiment.finished",
    } == set(by_name)
    assert len(events) <= 12, "no event for each report"
    (flow_run,) = told.ask("flow_runs")
    lost, recovered = by_name["regrow.trial.lost"], by_name["regrow.trial.recovered"]
    assert (
        lost["resource"]["prefect.resource.id"]
        == recovered["resource"]["prefect.resource.id"]
        == "regrow.trial.story.0"
    )
    assert {one["prefect.resource.id"] for one in lost["related"]} == {
        "regrow.experiment.story",
        f"prefect.flow-run.{flow_run['id']}",
    }
    assert (lost["payload"]["attempt"], lost["payload"]["message"]) == (
        1,
        "the worker process died",
    )
    assert recovered["payload"]["attempt"] == 2
    assert (
        recovered["payload"]["step"]
        == told.desk.show("story")["trials"][0]["attempts"][1]["from_step"]
    )
    newest = max(
        (e for e in events if e["event"] == "regrow.trial.best"), key=lambda e: e["occurred"]
    )
    assert (newest["payload"]["trial"], newest["payload"]["value"]) == (2, 2.01)


def test_it_is_a_run_of_a_deployment_as_only_those_have_buttons_in_the_page(told: Told) -> None:
    (flow_run,), (deployment,) = told.ask("flow_runs"), told.ask("deployments")
    assert (flow_run["deployment_id"], deployment["name"], deployment["schedules"]) == (
        deployment["id"],
        "by hand",
        [],
    )


def test_progress_and_result_are_artifacts_of_the_flow_run(told: Told) -> None:
    (flow_run,) = told.ask("flow_runs")
    found = {one["key"]: one for one in told.ask("artifacts")}
    assert {one["flow_run_id"] for one in found.values()} == {flow_run["id"]}
    assert set(found) == {"regrow-story", "regrow-story-best", "regrow-story-progress"}
    assert (found["regrow-story-progress"]["type"], found["regrow-story-progress"]["data"]) == (
        "progress",
        100.0,
    )
    page = found["regrow-story"]["data"]
    assert "**finished**: 3 of 3 trials (2 done, 1 failed)" in page
    assert "data:image/png;base64," in page
    assert "| 0 | 1 | lost |" in page
    assert "bad &lt;luck&gt;" in page
    best = json.loads(told.desk.look("best", "story", "--json"))
    assert f"x: {best['config']['x']}" in found["regrow-story-best"]["data"]


def of(trial: int, attempt: int, steps: range) -> set[str]:
    """What an attempt prints and logs at these steps."""
    name = f"trial {trial} attempt {attempt} step"
    kinds = ("printed", "complained", "logged", "written below Python")
    said = {f"{name} 1 said by a child"} if 1 in steps else set()
    return {f"{name} {step} {kind}" for step in steps for kind in kinds} | said


def test_what_two_trials_print_at_once_is_with_the_right_task_run(told: Told) -> None:
    second = told.desk.show("story")["trials"][0]["attempts"][1]
    ours = [m for m in told.messages("trial-0000") if m.startswith("trial 0 attempt 2 step")]
    assert sorted(ours) == sorted(of(0, 2, range(second["from_step"] + 1, STEPS + 1)))
    theirs = [m for m in told.messages("trial-0001") if m.startswith("trial ")]
    assert sorted(theirs) == sorted(of(1, 1, range(1, STEPS + 1)))
    assert any("ValueError: bad <luck>" in message for message in told.messages("trial-0002"))


def test_what_they_print_is_in_the_right_objects_once(told: Told) -> None:
    folder = told.desk.folder / ".regrow" / "story" / "logs"
    second = told.desk.show("story")["trials"][0]["attempts"][1]
    for trial, attempt, steps in (
        (1, 1, range(1, STEPS + 1)),
        (0, 2, range(second["from_step"] + 1, STEPS + 1)),
    ):
        parts = sorted((folder / str(trial) / str(attempt)).iterdir())
        lines = [
            json.loads(line)["text"] for part in parts for line in part.read_text().splitlines()
        ]
        assert sorted(lines) == sorted(of(trial, attempt, steps))
        assert len(parts) > 1, "some of it was durable while the attempt ran"


def test_the_killed_attempts_last_durable_words_are_kept(told: Told) -> None:
    lines = told.printed(0)
    first = {line["text"] for line in lines if line["attempt"] == 1 and line["stream"] != "regrow"}
    assert of(0, 1, range(1, 3)) <= first
    assert [
        (line["attempt"], line["text"].partition(" on ")[0])
        for line in lines
        if line["stream"] == "regrow"
    ][0::2] == [
        (1, "attempt 1"),
        (2, "attempt 2"),
    ]
    assert next(line["text"] for line in lines if "lost at step" in line["text"]).endswith(
        ": the worker process died"
    )
    logged = next(line for line in lines if line["text"].endswith("step 1 logged"))
    assert (logged["stream"], logged["level"], logged["logger"]) == ("log", "INFO", "theirs")


def test_following_shows_the_same_and_ends_with_the_trial(told: Told) -> None:
    assert told.followed == told.desk.look("logs", "story", 0)
    assert told.followed.splitlines()[-1] == f"--- attempt 2 done at step {STEPS}"


def test_a_failed_attempts_traceback_is_shown(told: Told) -> None:
    said = told.desk.look("logs", "story", 2)
    assert "Traceback (most recent call last):" in said
    assert "ValueError: bad <luck>" in said
    assert said.splitlines()[-1] == "--- attempt 1 failed at step 1: ValueError: bad <luck>"
    assert told.desk.look("logs", "story", 0, "--attempt", 1).count("--- ") == 2


def test_a_trial_that_is_not_there_is_told(told: Told) -> None:
    with pytest.raises(UserError, match="no trial 7 in 'story'; it has the trials 0 to 2"):
        told.desk.look("logs", "story", 7)
    with pytest.raises(UserError, match="there is no attempt 2 of trial 1"):
        told.desk.look("logs", "story", 1, "--attempt", 2)
