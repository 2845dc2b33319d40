"""By which step a trial counts (`score`), and steps that leave some out (`step_metric`)."""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.events import Decided
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from regrow.search.step_metric import Filled, StepMetric


def spec(**changes: Any) -> Spec:
    base: dict[str, Any] = {
        "name": "steps",
        "trainable": "work.py:train",
        "metric": "score",
        "mode": "max",
        "search": "random",
        "schedule": "fifo",
        "space": {"x": {"uniform": [0.0, 1.0]}},
        "trials": 6,
        "max_steps": 3,
    }
    return Spec.parse({**base, **changes})


def run(function: Any, workers: int = 1, **changes: Any) -> Simulation:
    made = spec(**changes)
    done = simulate(made, FunctionObjective(function=function, spec=made), workers=workers)
    assert verify(done.events).difference is None
    return done


def peak(config: dict[str, Any], step: int) -> dict[str, float]:
    """Best at step 2, and the better it is there, the worse at step 3."""
    return {"score": {1: 0.5, 2: 1.0 + config["x"], 3: -config["x"]}[step]}


def test_the_best_step_counts_unless_the_last_one_is_to() -> None:
    for score in ("best", "last", "final"):
        history = run(peak, score=score).history
        xs = [trial.config["x"] for trial in history.trials]
        leader = history.leader
        assert leader is not None
        assert leader.best is not None
        expected = (max(xs), 2) if score == "best" else (min(xs), 3)
        assert (leader.config["x"], leader.best[1]) == expected, score


def test_the_leader_of_last_steps_is_another_one_once_it_became_worse() -> None:
    history = run(peak, score="last", trials=3, concurrency=3, workers=3).history
    lowest = min(history.trials, key=lambda trial: trial.config["x"])
    assert history.best == lowest.number


def test_a_trial_that_was_stopped_counts_with_last_and_not_with_final() -> None:
    stops: dict[str, Any] = {
        "schedule": {"asha": {"grace_period": 1, "reduction_factor": 2}},
        "trials": 8,
        "max_steps": 4,
    }
    falls = lambda config, step: {"score": config["x"] + 10.0 * (step == 1)}  # noqa: E731 - stopped ones look best
    last, final = (
        run(falls, score="last", **stops).history,
        run(falls, score="final", **stops).history,
    )
    stopped = [trial for trial in last.trials if trial.state.value == "stopped"]
    assert any(trial.step == 1 for trial in stopped)
    assert last.leader is not None
    assert last.leader.state.value == "stopped"
    assert final.leader is not None
    assert final.leader.state.value == "done"
    assert all(trial.best is None for trial in final.trials if trial.state.value != "done")


def test_a_sampler_is_told_the_step_that_counts() -> None:
    from regrow.search.planning.results import Results

    for score, value in (("best", 1.0), ("last", 0.0), ("final", 0.0)):
        history = run(
            lambda config, step: {"score": float(step == 2)}, score=score, trials=1
        ).history
        assert Results(history).of(history.trials[0]).value == value


def test_time_is_what_the_metric_says_and_never_runs_back() -> None:
    clock = StepMetric(name="epoch", first=0)
    assert [clock.time({"epoch": epoch}, 0) for epoch in (0, 10, 20.0)] == [1, 11, 21]
    assert clock.time({}, 11) == 11
    assert clock.time({"epoch": 3}, 11) == 11


def test_a_time_without_a_report_has_the_value_of_the_next_one() -> None:
    filled = Filled([5.0, 6.0, 7.0], [1, 4, 6], 5)
    assert list(filled) == [5.0, 6.0, 6.0, 6.0, 7.0]
    assert (filled[-1], filled[1:3], len(filled)) == (7.0, [6.0, 6.0], 5)
    assert list(Filled([5.0], [1], 3)) == [5.0, 5.0, 5.0], (
        "after the last report it stays as it was"
    )


def tenth(config: dict[str, Any], step: int) -> dict[str, float]:
    return {"score": config["x"], "epoch": 10.0 * (step - 1)}


def test_rungs_are_reached_by_the_metric_and_a_report_may_pass_several() -> None:
    asha = {"asha": {"grace_period": 1, "reduction_factor": 3}}
    done = run(
        tenth,
        schedule=asha,
        step_metric={"name": "epoch", "first": 0},
        max_steps=30,
        score="last",
        trials=9,
    )
    steps: dict[int, list[int]] = {}
    for event in done.events:
        if isinstance(event, Decided):
            steps.setdefault(event.trial, []).append(event.step)
    assert steps[0] == [1, 3, 9, 27], "epoch 0, then 10 for the rungs 3 and 9, then 30"
    assert any(trial.state.value == "stopped" for trial in done.history.trials)


@pytest.mark.parametrize("rule", ["median", "percentile"])
def test_the_rules_without_rungs_take_gaps(rule: str) -> None:
    options = {rule: {"grace_period": 11, "interval": 10, "min_samples_required": 1}}
    done = run(
        tenth, schedule=options, step_metric={"name": "epoch", "first": 0}, max_steps=30, trials=6
    )
    assert {event.step for event in done.events if isinstance(event, Decided)} == {11, 21}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step_metric": "score"}, "is to become better, it cannot count steps"),
        (
            {"step_metric": "epoch", "schedule": {"pbt": {"perturbation_interval": 1}}},
            "does not go with pbt",
        ),
        ({"step_metric": {"name": "epoch", "first": "0"}}, "step_metric.first"),
        ({"score": "worst"}, "score"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        spec(**changes)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_both_come_back_from_the_log_and_are_part_of_what_the_experiment_is() -> None:
    made = spec(score="final", step_metric="epoch")
    assert Spec.recorded(made.to_json()) == made
    assert made.identity() != spec().identity()
