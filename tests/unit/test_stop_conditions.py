"""When an experiment ends before all its trials are done, and a trial before its last step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from regrow.search import spec as specs
from regrow.search.endings import Ending, Endings
from regrow.search.errors import SpecError
from regrow.search.events import Closing, Reported
from regrow.search.lifecycle import TrialState
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from regrow.tasks.ports.executor import Finished
from regrow.tasks.trial import trial as trials
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Attempting, Killed, killed_after, save, sent
from tests.unit.office import MakeOffice

Curve = Callable[[Mapping[str, Any], int], Any]


def spec(values: Sequence[float] = (1.0, 2.0, 3.0), **changes: Any) -> Spec:
    """Trials one after the other, each with one of `values`."""
    given = {
        "name": "stops",
        "trainable": "work.py:train",
        "metric": "score",
        "mode": "max",
        "search": "grid",
        "max_steps": 4,
        "space": {"x": {"grid": list(values)}},
        **changes,
    }
    return Spec.parse(given)


def run(
    of: Spec,
    curve: Curve = lambda config, step: config["x"],
    *,
    workers: int = 1,
    seconds: float = 1.0,
) -> Simulation:
    done = simulate(
        of, FunctionObjective(function=curve, spec=of, seconds=seconds), workers=workers
    )
    assert verify(done.events).difference is None
    return done


def why(done: Simulation) -> str | None:
    return done.history.closing.why if done.history.closing is not None else None


# Of an experiment


@pytest.mark.parametrize(
    ("mode", "values", "target", "ended"),
    [
        ("max", [1, 2, 3], 2.0, 2),
        ("min", [3, 2, 1], 2.0, 2),
        ("max", [1, 2, 3], 3.5, 3),
        ("max", [1, 2, 3], 0.0, 1),
    ],
)
def test_target(mode: str, values: list[float], target: float, ended: int) -> None:
    done = run(spec(values, mode=mode, stop={"target": target}))
    assert len(done.history.trials) == ended
    assert why(done) == (None if target == 3.5 else f"the target {target:g} was reached")
    if why(done):
        at = next(n for n, event in enumerate(done.events) if isinstance(event, Closing))
        assert isinstance(done.events[at - 1], Reported), "at once"
        assert done.history.closed is not None
        assert done.history.closed.status == "finished"


def test_the_target_counts_only_at_a_step_that_meets_the_constraints() -> None:
    def curve(config: Mapping[str, Any], step: int) -> dict[str, float]:
        return {"score": 9.0 if step < 3 else 1.0 * step, "latency": 20.0 if step < 3 else 5.0}

    done = run(spec([1.0], stop={"target": 3.5}, constraints=["latency <= 10"]), curve)
    assert why(done) == "the target 3.5 was reached"
    assert done.history.trials[0].best == (4.0, 4)
    unmet = run(spec([1.0], stop={"target": 3.5}, constraints=["latency <= 1"]), curve)
    assert why(unmet) is None
    assert unmet.history.best is None


def test_hours() -> None:
    done = run(spec(range(20), stop={"hours": 0.5}), seconds=60.0)
    assert why(done) == "0.5 hours are over"
    assert 1800 <= done.now < 1861


@pytest.mark.parametrize(
    ("values", "plateau", "ended"),
    [
        ([5, 4, 3, 2, 1, 0], {"trials": 3}, 4),
        ([1, 2, 3, 4, 5, 6], {"trials": 1}, 6),
        ([1, 2, 2.05, 2.1, 2.15, 2.2], {"trials": 2, "tolerance": 0.1}, 4),
        ([1, 2, 2.05, 2.1, 2.15, 2.2], {"trials": 3, "tolerance": 0.1}, 6),
        ([1, 2, 2.01, 2.02, 2.03, 2.04], {"trials": 2}, 6),
        ([5, 4, 6, 3, 2, 7, 1, 0], {"trials": 3}, 8),
    ],
)
def test_plateau(values: list[float], plateau: dict[str, Any], ended: int) -> None:
    """Small steps that add up to more than the tolerance are an improvement, once they do."""
    done = run(spec(values, stop={"plateau": plateau}))
    assert len(done.history.trials) == ended
    if ended < len(values):
        assert why(done) == f"{plateau['trials']} trials ended without a better value"


def test_a_plateau_of_the_mode_min() -> None:
    done = run(spec([3, 2, 1, 4, 5, 6], mode="min", stop={"plateau": {"trials": 2}}))
    assert len(done.history.trials) == 5


def test_number_of_trials_that_ended() -> None:
    done = run(spec(range(8), stop={"trials": 3}), workers=2)
    assert why(done) == "3 trials have ended"
    assert done.history.counts[TrialState.DONE] in (3, 4)


def test_all_holds_when_each_does() -> None:
    both = {"all": [{"target": 2.0}, {"trials": 4}]}
    done = run(spec(range(1, 9), stop=both))
    assert why(done) == "the target 2 was reached and 4 trials have ended"
    never = {"all": [{"target": 2.0}, {"target": 100.0}]}
    assert why(run(spec(range(1, 9), stop=never))) is None
    assert why(run(spec(range(1, 9), stop={"all": [{"target": 2.0}, {}]}))) is None


def test_the_first_that_holds_counts_also_beside_all() -> None:
    stop = {"hours": 100, "trials": 2, "all": [{"target": 5.0}, {"trials": 6}]}
    assert why(run(spec(range(1, 9), stop=stop))) == "2 trials have ended"
    nested = {"all": [{"all": [{"trials": 3}, {"target": 2.0}]}, {"trials": 5}]}
    done = run(spec(range(1, 9), stop=nested))
    assert len(done.history.trials) == 5


def test_a_stopped_experiment_that_is_resumed_with_more_trials_stops_at_once() -> None:
    of = spec(
        [1, 2, 3], search="random", space={"x": {"uniform": [0, 1]}}, trials=3, stop={"target": 0.0}
    )
    first = run(of)
    again = Simulation(spec=of, objective=first.objective, workers=1).open(first.events).run()
    assert len(again.history.trials) == len(first.history.trials)
    assert again.history.closed is not None
    assert again.history.closed.status == "finished"


@pytest.mark.parametrize(
    ("stop", "key", "hint"),
    [
        ({"plateau": {"steps": 3}}, "stop.plateau", "write {trials: N}"),
        ({"plateau": {"trials": 0}}, "stop.plateau.trials", "write 1 or more"),
        ({"trial": {"plateau": {"trials": 3}}}, "stop.trial.plateau", "write {steps: N}"),
        (
            {"trial": {"function": "nothing"}},
            "stop.trial.function",
            "write file.py:function or package.module:function",
        ),
        ({"all": [{"trial": {"target": 1.0}}]}, "stop.all", "write stop: {trial: ...}"),
        (
            {"plateau": {"trials": 2, "tolerance": 1}, "all": [{"plateau": {"trials": 2}}]},
            "stop",
            "give each plateau the same one",
        ),
        ({"hours": 0}, "stop.hours", "write a number above 0"),
        ({"target": "0.5"}, "stop.target", "write 0.5, without quotes"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused_with_its_key(
    stop: Any, key: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        spec(stop=stop)
    assert (caught.value.key, caught.value.hint) == (key, hint)


# Of a trial


@pytest.mark.parametrize(
    ("ending", "values", "ends"),
    [
        ({"sign": -1.0, "target": 0.5}, [0.1, 0.4, 0.5, 0.9], 3),
        ({"sign": 1.0, "target": 0.5}, [0.9, 0.6, 0.2], 3),
        ({"sign": -1.0, "target": 0.5}, [0.1, 0.2], None),
        ({"sign": -1.0, "steps": 2}, [1, 2, 2, 2, 9], 4),
        ({"sign": -1.0, "steps": 2}, [1, 2, 1, 3, 1, 4], None),
        ({"sign": -1.0, "steps": 2, "tolerance": 0.5}, [1, 1.4, 1.6, 1.7, 2.0, 2.2], 5),
        ({"sign": 1.0, "steps": 1}, [1, 2], 2),
        ({"sign": 1.0}, [1, 2, 3], None),
    ],
)
def test_target_and_plateau_of_a_trial(
    ending: dict[str, Any], values: list[float], ends: int | None
) -> None:
    endings = Endings(Ending(**ending))
    found = None
    for step, value in enumerate(values, start=1):
        endings.add(value)
        if endings.why is not None and found is None:
            found = step
            assert Endings(Ending(**ending), values[:step]).why == endings.why, (
                "restored there, it knows"
            )
    assert found == ends


def test_in_a_simulation_a_trial_that_has_done_enough_is_done() -> None:
    def curve(config: Mapping[str, Any], step: int) -> float:
        return float(config["x"]) * step

    done = run(spec([1, 2, 4], max_steps=4, stop={"trial": {"target": 4.0}}), curve)
    assert [trial.step for trial in done.history.trials] == [4, 2, 1]
    assert [trial.state for trial in done.history.trials] == [TrialState.DONE] * 3
    assert done.history.trials[1].attempts[-1].message == "it reached its target, 4"


class Runs:
    """Runs the next attempt of an office with the conditions of its specification, as a driver
    would send them.
    """

    def __init__(self, make_office: MakeOffice, attempt: Attempting) -> None:
        self.make_office, self.attempt = make_office, attempt

    def __call__(
        self, train: Callable[[Trial], None], *, enough: Any = None, **changes: Any
    ) -> Finished:
        if changes:
            self.office = self.make_office(**{"max_steps": 6, **changes})
        return self.attempt(self.office, train, enough=enough)


@pytest.fixture
def runs(make_office: MakeOffice, attempt: Attempting) -> Runs:
    return Runs(make_office, attempt)


def counting(trial: Trial) -> None:
    for step in trial.steps():
        trial.report({"score": float(step), "loss": -float(step)}, checkpoint=save)


def test_a_real_trial_that_reached_its_target_is_done_with_a_checkpoint_of_that_step(
    runs: Runs,
) -> None:
    finished = runs(counting, stop={"trial": {"target": 3.0}}, checkpoint={"every_steps": 100})
    assert (finished.ended.outcome, finished.ended.step) == ("done", 3)
    assert finished.ended.message == "it reached its target, 3"
    assert runs.office.history.trials[0].state is TrialState.DONE
    assert list(runs.office.history.trials[0].checkpoints) == [3]


def test_a_trainable_with_a_loop_of_its_own_is_unwound(runs: Runs) -> None:
    finished = runs(in_a_loop, stop={"trial": {"plateau": {"steps": 2}}}, max_steps=None)
    assert (finished.ended.outcome, finished.ended.step, finished.ended.message) == (
        "done",
        3,
        "no better value in 2 steps",
    )


def test_a_function_of_the_user_ends_a_trial(runs: Runs) -> None:
    asked: list[tuple[int, float]] = []

    def enough(number: int, metrics: dict[str, float]) -> bool:
        asked.append((number, metrics["loss"]))
        return metrics["loss"] <= -4

    finished = runs(counting, enough=enough, stop={"trial": {"function": "work_under_test:enough"}})
    assert (finished.ended.outcome, finished.ended.step, finished.ended.message) == (
        "done",
        4,
        "its stop function returned true",
    )
    assert asked == [(0, -1.0), (0, -2.0), (0, -3.0), (0, -4.0)]


def test_a_function_that_raises_is_an_error_of_the_users(runs: Runs) -> None:
    def enough(number: int, metrics: dict[str, float]) -> bool:
        raise KeyError("accuracy")

    finished = runs(counting, enough=enough, stop={"trial": {"function": "work_under_test:enough"}})
    assert (finished.ended.outcome, finished.ended.cause) == ("failed", "error")
    assert "accuracy" in finished.ended.message


def test_a_plateau_goes_on_counting_in_the_next_attempt(runs: Runs) -> None:
    def flat(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": 1.0}, checkpoint=save)
            if step == 3 and trial.attempt == 1:
                sent(trial)
                raise Killed

    with pytest.raises(Killed):
        runs(flat, stop={"trial": {"plateau": {"steps": 4}}}, max_steps=20)
    runs.office.lost(0, 1)
    finished = runs(flat)
    assert (finished.ended.outcome, finished.ended.step) == ("done", 5)


def in_a_loop(trial: Trial) -> None:
    while True:
        trial.report({"score": 1.0})


@pytest.mark.parametrize("train", [counting, in_a_loop])
def test_one_that_was_lost_after_it_had_done_enough_does_no_further_step(
    runs: Runs, train: Callable[[Trial], None]
) -> None:
    with pytest.raises(Killed):
        runs(killed_after(3), stop={"trial": {"target": 3.0}})
    runs.office.lost(0, 1)
    finished = runs(train)
    assert (finished.ended.outcome, finished.ended.step) == ("done", 3)
    assert runs.office.history.trials[0].step == 3


@pytest.mark.parametrize(
    ("changes", "endless"),
    [
        ({}, True),
        ({"stop": {"trials": 3}}, True),  # which ends the experiment once trials have ended
        ({"stop": {"plateau": {"trials": 3}}}, True),
        ({"max_steps": 9}, False),
        ({"stop": {"hours": 1}}, False),
        ({"stop": {"all": [{"hours": 1}, {"trials": 3}]}}, False),
        ({"stop": {"trial": {"plateau": {"steps": 3}}}}, False),
        ({"stop": {"trial": {"function": "work.py:enough"}}}, False),
        ({"schedule": "median"}, False),
    ],
)
def test_an_experiment_in_which_nothing_ends_a_trial_knows_it(
    changes: dict[str, Any], endless: bool
) -> None:
    assert spec(**{"max_steps": None, **changes}).endless is endless


def test_a_trial_that_nothing_ends_ends_after_a_million_steps(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        specs.MOST_STEPS,
        spec(max_steps=None).most_steps,
        spec(max_steps=2_000_000).most_steps,
    ) == (10**6, 10**6, 2_000_000)
    monkeypatch.setattr(trials, "MOST_STEPS", 7)
    finished = runs(counting, max_steps=None)
    assert (finished.ended.outcome, finished.ended.step) == ("done", 7)
