"""What MLflow's parent run says of an experiment: settings, source, environment, best trial,
files.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from regrow.infra.mlflow import parent_run
from regrow.infra.mlflow.trial_runs import PARENT, TrialRuns
from regrow.infra.mlflow.updates import RunUpdate
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Decided,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
)
from regrow.search.spec import Spec
from tests.unit.simulated import created, opened

ENVIRONMENT: dict[str, Any] = {
    "git": {
        "commit": "c0ffee",
        "branch": "main",
        "dirty": True,
        "remote": "https://example.org/a.git",
    },
    "python": "CPython 3.11.7",
    "regrow": "0.1.0",
    "user": "ann",
    "packages": {"numpy": "2.0"},
    "machine": {"host": "box", "cpus": 2, "gpus": ["A", "B"]},
}


def session(t: float, environment: dict[str, Any]) -> Opened:
    return Opened(t=t, by="driver", driver=f"d{t}", slots=1, trials=6, environment=environment)


def done(*, trace: str = "") -> list[AnyEvent]:
    ended: list[AnyEvent] = [Ended(t=7.0, trial=0, attempt=1, outcome="done", step=2)]
    if trace:
        ended = [
            Ended(
                t=7.0,
                trial=0,
                attempt=1,
                outcome="failed",
                cause="error",
                step=2,
                message="ValueError: no",
                trace=trace,
            )
        ]
    return [
        created(env={"HOME_OF": "a place"}),
        session(1.0, ENVIRONMENT),
        Proposed(t=2.0, trial=0, config={"x": 0.5, "kind": "a", "deep.n": 3}),
        Started(t=3.0, trial=0, attempt=1, until=1),
        Began(t=4.0, trial=0, attempt=1, node="n"),
        Reported(t=5.0, trial=0, attempt=1, rows=[Row(1, 5.0, {"score": 0.25})]),
        Decided(
            t=5.0,
            trial=0,
            attempt=1,
            step=1,
            verdict="continue",
            why="place 1 of 1 at rung 1, 1 go on",
        ),
        Reported(t=5.0, trial=0, attempt=1, rows=[Row(2, 6.0, {"score": 0.75})]),
        Saved(t=6.0, trial=0, attempt=1, step=2, manifest="m2", size=1),
        *ended,
        Closing(t=8.0, status="finished", why="", by="user"),
        Closed(t=8.0, status="finished"),
    ]


def last(events: list[AnyEvent], *, each: bool = False) -> dict[str, RunUpdate]:
    """What is written of each run, last."""
    runs = TrialRuns(lambda _: (), lambda key: f"/state/ten/{key}")
    found: dict[str, RunUpdate] = {}
    for event in events:
        runs.apply(event)
        if each:
            found |= {update.key: update for update in runs.drain()}
    return found | {update.key: update for update in runs.drain()}


def test_the_parent_says_from_which_code_on_which_machine_and_what_was_best() -> None:
    tags = last(done())[PARENT].tags
    assert tags.items() >= {
        "mlflow.source.git.commit": "c0ffee", "mlflow.source.git.branch": "main", "mlflow.user": "ann",
        "mlflow.source.git.repoURL": "https://example.org/a.git", "regrow.git_dirty": "true", "regrow.host": "box",
        "regrow.gpus": "A, B", "regrow.version": "0.1.0", "regrow.best_trial": "0", "regrow.best_value": "0.75",
        "regrow.best_step": "2", "regrow.best_checkpoint": "/state/ten/m2", "regrow.state": "finished",
    }.items()  # fmt: skip
    note = tags["mlflow.note.content"]
    assert "trial 0, score = 0.75 at step 2" in note
    assert yaml.safe_load(note.split("````yaml")[1].split("````")[0]) == {
        "x": 0.5,
        "kind": "a",
        "deep": {"n": 3},
    }


def test_the_best_trial_is_told_while_the_experiment_runs() -> None:
    running = done()[:8]
    assert last(running, each=True)[PARENT].tags["regrow.best_value"] == "0.75"
    assert last(running[:4], each=True)[PARENT].tags["regrow.best_value"] == "-"


def test_a_trial_says_from_which_code_where_it_is_and_what_was_decided_of_it() -> None:
    tags = last(done())["trial-0000"].tags
    assert tags["regrow.checkpoint"] == "/state/ten/m2"
    assert tags["regrow.rung"] == "1"
    assert tags["regrow.decision"] == "continue at step 1: place 1 of 1 at rung 1, 1 go on"
    assert tags["mlflow.source.git.commit"] == "c0ffee"


def test_a_trial_that_failed_has_its_traceback_as_its_description() -> None:
    tags = last(done(trace="Traceback\n  ````\nValueError: no"))["trial-0000"].tags
    assert tags["mlflow.note.content"].startswith("**ValueError: no**")
    assert tags["mlflow.note.content"].count("````") == 2, "what it prints cannot end the block"


def test_the_specification_is_a_file_that_can_be_run_and_holds_no_variable() -> None:
    files = last(done()[:2])[PARENT].artifacts
    spec = yaml.safe_load(files["spec.yaml"])
    assert spec["env"] == {"HOME_OF": None}
    assert Spec.parse(spec).name == "simulated"
    assert b"a place" not in b"".join(files.values())
    assert json.loads(files["environment.json"]) == ENVIRONMENT


def test_a_later_session_adds_its_environment_only_where_that_is_another() -> None:
    other = {**ENVIRONMENT, "python": "CPython 3.12.1"}
    again = last([*done(), session(9.0, ENVIRONMENT)])[PARENT]
    assert set(again.artifacts) == {"spec.yaml", "environment.json"}
    moved = last([*done(), session(9.0, other), opened(10.0)])[PARENT]
    assert set(moved.artifacts) == {"spec.yaml", "environment.json", "environment-session-2.json"}
    assert moved.tags["regrow.python"] == "CPython 3.12.1"


def test_files_that_were_written_are_not_written_again() -> None:
    runs = TrialRuns(lambda _: ())
    for event in done()[:2]:
        runs.apply(event)
    assert runs.drain()[0].artifacts
    for event in done()[2:]:
        runs.apply(event)
    assert not runs.drain()[0].artifacts


def test_settings_are_what_the_search_was_told() -> None:
    found = parent_run.settings(
        {
            "name": "a",
            "search": {"tpe": {"seed": 1}},
            "space": {"x": 1},
            "env": {"A": "b"},
            "trials": 3,
            "mode": "max",
        }
    )
    assert found == {"search.tpe.seed": "1", "mode": "max"}


def test_plain_values_are_written_as_autologging_would() -> None:
    assert [parent_run.text(value) for value in (True, None, 1e-05, "a", [64, 64])] == [
        "True",
        "None",
        "1e-05",
        "a",
        "[64, 64]",
    ]


def test_a_run_is_found_for_the_attempt_that_holds_the_lease_alone() -> None:
    runs = TrialRuns(lambda _: ())
    events = done()
    for event in events[:4]:
        runs.apply(event)
    assert runs.key(0, 1) is None, "it has not begun"
    runs.apply(events[4])
    assert runs.key(0, 1) == "trial-0000"
    assert runs.key(0, 2) is None
    assert runs.key(7, 1) is None
    for event in (
        *events[5:9],
        Ended(t=7.0, trial=0, attempt=1, outcome="lost", cause="preempted"),
        Started(t=8.0, trial=0, attempt=2),
    ):
        runs.apply(event)
    assert runs.is_over(0, 1)
    assert not runs.is_over(0, 2)
    runs.apply(Began(t=9.0, trial=0, attempt=2, node="n", restored=1))
    assert (runs.key(0, 1), runs.key(0, 2)) == (None, "trial-0000.1"), (
        "what comes now supersedes step 2"
    )
