"""Steps by a metric of the reports: gaps, and whatever else trainables count by. Everything shows
them, or they fail their trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from regrow.apps.page import pictures
from regrow.search import schedulers
from regrow.search.bounds import MOST
from regrow.search.events import Decided
from regrow.search.lifecycle import TrialState
from regrow.search.planning.planner import MOST_PASSED
from regrow.search.step_metric import Filled, stretches
from regrow.tasks.trial import reporter
from regrow.tasks.trial.trial import Trial
from tests.faults.test_every_pair import SCHEDULERS
from tests.unit import showing
from tests.unit.attempting import Attempting
from tests.unit.office import Office, offices

LATER = (
    st.integers(1, 30)
    | st.floats(-3, 300, width=16)
    | st.sampled_from([MOST, MOST - 1, -MOST, 1_000, 2_000_000, -1, 0, 0.5])
)
SEQUENCES = st.lists(st.none() | LATER, min_size=1, max_size=8)
EVERY_25 = [25, 50, 75, 100]
SCHEDULES: dict[str, Any] = {
    name: {"schedule": {name: options}, "max_steps": 27}
    for name, options in SCHEDULERS.items()
    if schedulers.kind(name).layout != "population"  # which `step_metric` does not go with
} | {
    "fifo": {"schedule": "fifo"},
    "asha": {"schedule": {"asha": {"grace_period": 1, "reduction_factor": 3}}, "max_steps": 27},
    "hyperband": {"schedule": {"async_hyperband": {"reduction_factor": 3}}, "max_steps": 27},
    "halving": {"schedule": {"successive_halving": {"reduction_factor": 3}}, "max_steps": 27},
    "guarded": {"schedule": {"asha": {"guard": True}}, "max_steps": 27},
    "rechecked": {"schedule": {"asha": {"recheck": True}}, "max_steps": 27},
    "median": {"schedule": {"median": {"min_samples_required": 1}}},
    "percentile": {"schedule": {"percentile": {"min_samples_required": 1}}},
}


def run(sequences: Iterable[list[Any]], office: Office) -> Office:
    """A trial for each sequence, one after the other; each reports these steps, if nobody ends it
    before.
    """
    given = list(sequences)

    def train(trial: Trial) -> None:
        for place, step in enumerate(given[trial.number % len(given)]):
            trial.report(
                {
                    "score": 1 / (1 + place + trial.number),
                    **({} if step is None else {"epoch": step}),
                }
            )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporter, "FLUSH_SECONDS", 60.0)
        attempt = Attempting(patch)
        while (instructions := office.instructions()).finished is None:
            for assignment in instructions.submit:
                attempt(office, train, assignment)
    return office


def usual(schedule: str, trials: int, first: int = 1) -> dict[str, Any]:
    counted = {"name": "epoch", "first": first}
    return {
        "trainable": "work_under_test:train",
        "trials": trials,
        "step_metric": counted,
        "max_steps": None,
        **SCHEDULES[schedule],
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(SEQUENCES, min_size=1, max_size=3),
    st.sampled_from(sorted(SCHEDULES)),
    st.sampled_from([0, 1, -5]),
)
@example([EVERY_25], "median", 0)
@example([[10, 20, 30, 1000], [1, 2, 3, 4]], "asha", 1)
def test_whatever_steps_are_reported_everything_shows_them_and_the_log_verifies(
    sequences: list[list[Any]], schedule: str, first: int
) -> None:
    with offices(**usual(schedule, len(sequences), first)) as make:
        office = run(sequences, make())
        assert {trial.state for trial in office.history.trials} <= {
            TrialState.DONE,
            TrialState.STOPPED,
        }
        assert showing.lines(office.store)


@pytest.mark.parametrize("schedule", ["median", "asha"])
def test_the_report_and_the_exports_take_gaps(schedule: str, tmp_path: Path) -> None:
    with offices(**usual(schedule, 4, 0)) as make:
        office = run([[25, 50, 75, 100], [10, 1000.5], [MOST], [-1, 0, 1]], make())
        assert "epoch" in showing.pages(office.store, tmp_path / "tensorboard")


def test_rungs_are_shown_by_the_steps_that_were_reported() -> None:
    with offices(**usual("median", 3, 0)) as make:
        shown = showing.lines(run([EVERY_25], make()).store)
    rungs = [
        line.split()[0]
        for line in shown.splitlines()
        if line.strip().split()[:1] in (["25"], ["50"], ["75"], ["100"])
    ]
    assert rungs[:4] == ["100", "75", "50", "25"]


def test_a_report_that_passes_any_number_of_decisions_has_the_first_thousand_taken() -> None:
    with offices(**usual("median", 2)) as make:
        office = run([[MOST - 1, MOST]], make())
        taken = [
            event for event in office.events if isinstance(event, Decided) and event.trial == 0
        ]
        assert [event.step for event in taken] == [*range(1, MOST_PASSED + 2), MOST], (
            "from there on the next one is due"
        )


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (2**53 + 2, "9007199254740994 (int)"),
        (2**70, "1180591620717411303424 (int)"),
        (np.uint64(2**64 - 1), "18446744073709551615"),
        pytest.param(10**5000, "a value of type int", id="5000 digits"),
        (-(2**63), "-9223372036854775808"),
        (math.nan, "nan (float)"),
        (math.inf, "inf (float)"),
        ("7", "'7' (str)"),
        (True, "True (bool)"),
        (np.True_, "True_ (bool)"),
        (np.float32("nan"), "nan"),
        ([1], "[1] (list)"),
        (np.array([1, 2]), "array([1, 2]) (ndarray)"),
    ],
)
def test_a_step_that_nothing_can_be_counted_by_fails_its_trial_alone(step: Any, said: str) -> None:
    with offices(**usual("asha", 2)) as make:
        office = make()

        def train(trial: Trial) -> None:
            last: dict[str, Any] = {
                "score": 2.0,
                "epoch": step if trial.number == 0 else np.int64(27),
            }
            trial.report({"score": 1.0, "epoch": float(np.uint8(1))})
            trial.report(last)

        with pytest.MonkeyPatch.context() as patch:
            attempt = Attempting(patch)
            bad, good = (attempt(office, train, office.submitted()).ended for _ in range(2))
        assert (bad.outcome, bad.cause, good.outcome) == ("failed", "error", "done")
        assert said in bad.message
        assert "step 2: metric 'epoch'" in bad.message
        assert Path(__file__).name in bad.trace
        assert [trial.step for trial in office.history.trials] == [1, 2], (
            "what was reported before counts"
        )


def test_stretches_of_equal_values_are_what_their_steps_are_one_by_one() -> None:
    filled = Filled([5.0, 6.0, 7.0], [1, 4, 6], 9)
    for start in range(10):
        assert [value for value, count in filled.stretches(start) for _ in range(count)] == list(
            filled
        )[start:]
    assert list(stretches([1.0, 2.0, 2.0], 1)) == [(2.0, 1), (2.0, 1)]
    assert list(Filled([0.0, 1.0], [0, 0], 3).stretches(0)) == [(1.0, 3)]


def test_values_that_are_too_far_apart_for_a_float_are_shown(tmp_path: Path) -> None:
    values = [[1e308, -1e308, 0.0], [5e-324, 0.0], [-1e308, 1e307, 3.0]]

    def train(trial: Trial) -> None:
        for value in values[trial.number]:
            trial.report({"score": value, "loss": value})

    with (
        offices(trainable="work_under_test:train", trials=3, schedule="fifo") as make,
        pytest.MonkeyPatch.context() as patch,
    ):
        office, attempt = make(), Attempting(patch)
        for _ in values:
            attempt(office, train)
        assert "1e+308" in showing.lines(office.store)
        assert showing.pages(office.store, tmp_path / "tensorboard")
        assert pictures.chart(
            [pictures.DrawnCurve(label="a", points=[(0.0, -1e308), (1.0, 1e308)], end=1.0)],
            "x",
            "y",
        )
