"""The median stopping rule against numbers worked out by hand."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.search.errors import SpecError
from regrow.search.mode import Mode
from tests.unit.scheduling import Run, scheduler


def come(median: Any, trial: int, *values: float) -> list[str]:
    """The actions at steps 1, 2, ..."""
    actions = []
    for step in range(1, len(values) + 1):
        if median.first(trial, step - 1) == step:
            verdict = median.decide(trial, values[:step])
            median.tell(trial, values[:step], verdict)
            actions.append(verdict.action)
    return actions


def test_the_best_so_far_is_compared_with_the_median_of_running_averages() -> None:
    median = scheduler("median", mode="max")
    for trial, values in enumerate(((1.0, 3.0), (2.0, 2.0), (4.0, 6.0))):
        assert come(median, trial, *values) == ["continue", "continue"]
    # averages by step 2: 2, 2, 5, so the median is 2; by step 1: 1, 2, 4
    assert median.decide(3, [2.0]).action == "continue"
    assert median.decide(3, [1.9]).action == "stop"
    assert come(median, 3, 2.0, 0.0) == ["continue", "continue"], (
        "its best so far counts, not its last"
    )
    # with that fourth one (averages 2 and 1) the medians are (2 + 2) / 2 and (2 + 2) / 2
    assert (
        median.decide(4, [1.5]).why
        == "its best 1.5 against 2, the median of 4 running averages at step 1"
    )
    assert median.decide(4, [1.5]).action == "stop"


def test_an_even_number_has_the_mean_of_the_middle_two() -> None:
    median = scheduler("median", mode="min")
    for trial, value in enumerate((1.0, 2.0, 4.0, 9.0)):
        median.tell(trial, [value], median.decide(0, [0.0]))
    assert median.decide(9, [3.0]).action == "continue"
    assert median.decide(9, [3.0 + 1e-12]).action == "stop"


def test_an_excluded_trial_does_not_count_until_it_is_kept() -> None:
    median = scheduler("median", mode="min")
    for trial, value in enumerate((1.0, 2.0, 4.0, 9.0)):
        median.tell(trial, [value], median.decide(0, [0.0]))
    median.excluded(0, excluded=True)
    assert [median.decide(9, [value]).action for value in (4.0, 4.1)] == ["continue", "stop"]
    median.excluded(0, excluded=False)
    assert [median.decide(9, [value]).action for value in (3.0, 3.1)] == ["continue", "stop"]


def test_a_tie_with_the_median_goes_on() -> None:
    median = scheduler("median", mode="max")
    assert [come(median, trial, 0.5, 0.5) for trial in range(6)] == [["continue", "continue"]] * 6


def test_fewer_others_than_required_stop_nobody() -> None:
    median = scheduler({"median": {"min_samples_required": 2}}, mode="max")
    assert come(median, 0, 5.0, 5.0) == ["continue", "continue"]
    assert come(median, 1, 1.0, 1.0) == ["continue", "continue"]
    assert come(median, 2, 1.0) == ["stop"]
    assert median.decide(3, [0.0]).action == "stop"
    assert median.decide(3, [0.0, 0.0]).action == "stop"
    assert median.decide(3, [0.0, 0.0, 0.0]).why == "0 others have reached step 3, 2 are needed"
    assert median.decide(3, [0.0, 0.0, 0.0]).until == 4


def test_one_that_stopped_still_counts_where_it_was() -> None:
    median = scheduler({"median": {"min_samples_required": 1}}, mode="max")
    come(median, 0, 5.0)
    median.ended(0, "failed")
    assert come(median, 1, 4.0) == ["stop"]


def test_decisions_are_due_after_the_grace_period_in_intervals() -> None:
    median = scheduler({"median": {"grace_period": 4, "interval": 3}}, max_steps=13)
    assert [median.first(0, after) for after in (0, 3, 4, 6, 7, 9, 10, 12)] == [
        4,
        4,
        7,
        7,
        10,
        10,
        None,
        None,
    ]
    endless = scheduler({"median": {"interval": 10}}, max_steps=None)
    assert [endless.first(0, after) for after in (0, 1, 11, 1000)] == [1, 11, 21, 1001]


def test_averages_are_those_of_all_steps_also_where_decisions_are_rare() -> None:
    median = scheduler(
        {"median": {"grace_period": 2, "interval": 2, "min_samples_required": 1}}, mode="max"
    )
    come(median, 0, 10.0, 0.0, 2.0, 4.0)  # by step 2: 5; by step 4: 4
    assert median.decide(1, [4.9, 0.0]).action == "stop"
    assert median.decide(1, [5.0, 0.0]).action == "continue"
    assert median.decide(1, [1.0, 1.0, 1.0, 3.9]).action == "stop"
    assert median.decide(1, [1.0, 1.0, 1.0, 4.0]).action == "continue"


def test_an_infinite_average_does_not_count() -> None:
    median = scheduler({"median": {"min_samples_required": 1}}, mode="min")
    come(median, 0, math.inf)
    assert median.decide(1, [7.0]).why.startswith("0 others")
    come(median, 1, 7.0)
    assert median.decide(2, [math.inf]).action == "stop"


@given(
    st.lists(st.lists(st.integers(-50, 50), min_size=5, max_size=5), min_size=1, max_size=12),
    st.sampled_from(["min", "max"]),
)
def test_it_is_the_rule_as_written(curves: list[list[int]], mode: Mode) -> None:
    median = scheduler("median", mode=mode)
    known: list[list[float]] = []
    for trial, whole in enumerate(curves):
        seen: list[float] = []
        for value in whole:
            seen.append(float(value))
            averages = [statistics.fmean(c[: len(seen)]) for c in known if len(c) >= len(seen)]
            verdict = median.decide(trial, seen)
            worse = False
            if len(averages) >= 3:
                at = statistics.median(averages)
                worse = max(seen) < at - 1e-9 if mode == "max" else min(seen) > at + 1e-9
                if math.isclose(at, max(seen) if mode == "max" else min(seen), abs_tol=1e-9):
                    worse = verdict.action == "stop"
            assert (verdict.action == "stop") == worse
            median.tell(trial, seen, verdict)
            if worse:
                break
        known.append(seen)


def test_a_whole_run_with_losses_and_failures() -> None:
    run = Run(
        scheduler("median", max_steps=6),
        lambda t, s, c: float(t % 5),
        20,
        3,
        breaks={4: 2},
        lost={(7, 3), (9, 1)},
    ).go()
    assert set(run.outcome) == set(range(20))
    assert run.outcome[4] == "failed"
    assert run.outcome[19] == "done"
    assert run.outcome[15] == "stopped"
    assert all(len({s for s, _ in run.verdicts(t)}) == len(run.verdicts(t)) for t in run.values)


@pytest.mark.parametrize("option", ["grace_period", "min_samples_required", "interval"])
def test_options_count_from_1(option: str) -> None:
    with pytest.raises(SpecError, match=rf"schedule\.median\.{option}"):
        scheduler({"median": {option: 0}})
