"""ASHA, rung by rung, against traces worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.search import schedulers
from regrow.search.errors import SpecError
from regrow.search.mode import Mode
from regrow.search.schedulers.asha import Asha
from regrow.search.schedulers.base import Verdict
from regrow.search.schedulers.fifo import Fifo
from tests.unit.scheduling import setting


def asha_of(mode: Mode, max_steps: int, reduction_factor: int = 3, grace_period: int = 1) -> Asha:
    return Asha(
        setting(max_steps, mode), reduction_factor=reduction_factor, grace_period=grace_period
    )


def run(asha: Asha, *arrivals: tuple[int, float]) -> list[bool]:
    """Takes (step, value) in that order; whether each continued."""
    verdicts = []
    for trial, (step, value) in enumerate(arrivals):
        values = [0.0] * (step - 1) + [value]
        verdict = asha.decide(trial, values)
        asha.tell(trial, values, verdict)
        verdicts.append(verdict.action == "continue")
    return verdicts


def test_the_best_third_goes_on_when_more_is_better() -> None:
    # place of each among those before it and itself:  1/1   2/2   1/3   2/4    1/5   1/6    3/7
    # 2/8    5/9
    values = (0.5, 0.4, 0.6, 0.55, 0.7, 0.9, 0.65, 0.8, 0.62)
    # of n, max(1, n // 3) continue:                       1     1     1     1      1     2      2
    # 2      3
    expected = [True, False, True, False, True, True, False, True, False]
    assert run(asha_of("max", 27), *((1, v) for v in values)) == expected


def test_each_rung_counts_only_those_that_reached_it() -> None:
    arrivals = ((1, 0.5), (3, 0.1), (1, 0.6), (3, 0.05), (1, 0.7), (3, 0.2))
    assert run(asha_of("max", 9), *arrivals) == [True, True, True, False, True, True]


def test_a_trial_that_went_on_is_judged_again_by_its_place_of_then() -> None:
    asha = Asha(setting(27, "max"), recheck=True)
    assert [asha.first(0, step) for step in (0, 1, 3, 4, 9, 10)] == [1, 2, 4, 9, 10, None]
    assert run(asha, *((9, v) for v in (0.5, 0.6, 0.7, 0.8, 0.4, 0.3))) == [True] * 4 + [False] * 2
    again = {
        trial: asha.decide(trial, [0.0] * 8 + [v, 0.9]) for trial, v in enumerate((0.5, 0.6, 0.7))
    }
    assert [again[trial].action for trial in (0, 1, 2)] == ["stop", "stop", "continue"]
    assert again[0].why == "place 4 of 6 at rung 9 by now, 2 go on"
    assert again[2].until is None


def test_paused_trials_are_not_judged_again() -> None:
    with pytest.raises(SpecError, match=r"recheck: .*goes with type: stopping alone"):
        Asha(setting(27, "max"), type="promotion", recheck=True)


def test_a_tie_with_the_worst_that_goes_on_goes_on() -> None:
    assert run(asha_of("max", 9), (1, 0.5), (1, 0.5), (1, 0.5)) == [True, True, True]
    assert run(asha_of("min", 9), (1, 0.5), (1, 0.5), (1, 0.5 + 1e-12)) == [True, True, False]


@pytest.mark.parametrize(
    ("most", "grace", "factor", "rungs"),
    [
        (27, 1, 3, [1, 3, 9]),
        (28, 1, 3, [1, 3, 9, 27]),
        (27, 2, 3, [2, 6, 18]),
        (16, 4, 2, [4, 8]),
        (10, 10, 3, []),
        (1, 1, 3, []),
        (2, 1, 3, [1]),
    ],
)
def test_rungs_lie_below_the_last_step(
    most: int, grace: int, factor: int, rungs: list[int]
) -> None:
    asha = asha_of("max", most, grace_period=grace, reduction_factor=factor)
    found, after = [], 0
    while (rung := asha.first(0, after)) is not None:
        found.append(rung)
        after = rung
    assert found == rungs


def test_the_first_rung_comes_after_the_grace_period_and_a_verdict_names_the_next() -> None:
    asha = asha_of("max", 27, grace_period=2)
    assert asha.first(0, 0) == 2
    assert asha.first(0, 2) == 6
    assert asha.first(0, 4) == 6
    assert asha.first(0, 18) is None
    assert asha.decide(0, [0.0, 1.0]).until == 6
    assert asha.decide(0, [0.0] * 17 + [1.0]).until is None


def test_the_reason_says_place_rung_and_how_many_go_on() -> None:
    asha = asha_of("max", 9)
    asha.tell(0, [0.5], Verdict())
    assert asha.decide(1, [0.4]).why == "place 2 of 2 at rung 1, 1 go on"


def test_asking_changes_nothing() -> None:
    asha = asha_of("max", 9)
    asha.tell(0, [0.5], Verdict())
    assert asha.decide(1, [0.4]) == asha.decide(1, [0.4])
    assert asha.decide(1, [0.6]).action == "continue"


values = st.floats(-1e6, 1e6).map(lambda v: round(v, 3))


@given(
    st.lists(values, min_size=1, max_size=40), st.integers(2, 5), st.sampled_from(["min", "max"])
)
def test_a_trial_goes_on_if_it_is_among_the_best_of_those_so_far(
    seen: list[float], factor: int, mode: Mode
) -> None:
    asha = asha_of(mode, 100, reduction_factor=factor)
    verdicts = run(asha, *((1, v) for v in seen))
    for n, went_on in enumerate(verdicts, start=1):
        so_far = sorted(seen[:n], reverse=mode == "max")
        worst = so_far[max(1, n // factor) - 1]
        value = seen[n - 1]
        assert went_on == (value >= worst if mode == "max" else value <= worst)


@pytest.mark.parametrize(
    "options", [{"reduction_factor": 1}, {"grace_period": 0}, {"grace_period": 10}, {"grace": 1}]
)
def test_options_that_make_no_rungs_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(SpecError, match=r"schedule\.asha"):
        schedulers.make({"asha": options}, setting(9))


def test_it_needs_to_know_the_last_step() -> None:
    with pytest.raises(SpecError, match="max_steps"):
        schedulers.make("asha", setting(None))


def test_fifo_decides_nothing() -> None:
    fifo = schedulers.make("fifo", setting(None))
    assert isinstance(fifo, Fifo)
    assert fifo.first(0, 0) is None
    assert fifo.decide(0, [-math.inf]).action == "continue"
