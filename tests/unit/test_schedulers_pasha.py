"""PASHA against rankings and curves worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.search.errors import SpecError
from regrow.search.mode import Mode
from regrow.search.schedulers.pasha import Pasha, crosses, percentile
from tests.unit.scheduling import Run, scheduler


def tell(pasha: Pasha, trial: int, *values: float) -> str:
    """The trial arrives at step len(values)."""
    verdict = pasha.decide(trial, values)
    pasha.tell(trial, values, verdict)
    return verdict.action


def pair(pasha: Pasha, curves: Sequence[Sequence[float]]) -> None:
    """Trials come to rung 1, all of them, and then to rung 3, though they were not promoted."""
    for trial, curve in enumerate(curves):
        tell(pasha, trial, curve[0])
        pasha.started(trial)
    for trial, curve in enumerate(curves):
        tell(pasha, trial, *curve)


def test_at_first_nobody_goes_beyond_the_second_rung() -> None:
    pasha = scheduler("pasha", max_steps=81)
    assert pasha.highest == 3
    pair(pasha, [(0.1 * t, 0.1 * t, 0.1 * t) for t in range(9)])
    assert pasha.highest == 3, "all are ranked alike"
    assert pasha.promote(complete=False) is None
    assert pasha.promote(complete=True) is None
    assert pasha.decide(9, [0.0, 0.0, 5.0]).why == "rung 3 is the highest so far"


def test_a_changed_ranking_opens_the_next_rung_one_at_a_time() -> None:
    pasha = scheduler("pasha", max_steps=81)
    pair(pasha, [(0.1, 0.1, 0.9), (0.2, 0.2, 0.2)])
    assert pasha.highest == 9
    tell(pasha, 2, 0.0)
    assert tell(pasha, 2, 0.0, 0.0, 0.1) == "pause"
    assert pasha.highest == 9, "it looks at rungs 9 and 3 now"
    assert pasha.promote(complete=False) == 0
    pasha.started(0)
    tell(pasha, 0, *[0.9] * 9)
    assert pasha.highest == 9
    pasha.started(1)
    tell(pasha, 1, *[0.2] * 8, 0.95)
    assert pasha.highest == 27


def test_the_last_rung_to_be_opened_is_the_last_step() -> None:
    pasha = scheduler("pasha", max_steps=9)
    pair(pasha, [(0.1, 0.1, 0.9), (0.2, 0.2, 0.2)])
    assert pasha.highest == 9
    tell(pasha, 2, 0.0)
    tell(pasha, 2, 0.0, 0.0, 99.0)
    assert pasha.highest == 9
    assert scheduler("pasha", max_steps=3).highest == 3
    assert scheduler("pasha", max_steps=1).highest == 1


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_difference_within_epsilon_is_no_change(mode: Mode) -> None:
    sign = 1 if mode == "max" else -1
    pasha = scheduler("pasha", max_steps=81, mode=mode)
    # trials 0 and 1 criss-cross: 0 is ahead, behind, ahead; 0.25 apart at rung 3. Binary fractions,
    # so that sums are exact.
    curves = [(0.5, 0.25, 0.75), (0.375, 0.5, 0.5), (0.0, 0.0, 0.625)]
    for trial, curve in enumerate(curves[:2]):
        tell(pasha, trial, sign * curve[0])
    for trial, curve in enumerate(curves[:2]):
        tell(pasha, trial, *(sign * v for v in curve))
    assert pasha.epsilon == 0.25
    assert pasha.highest == 3
    # at rung 1 trial 2 is behind trial 1 by 0.25, at rung 3 it is ahead
    tell(pasha, 2, sign * 0.125)
    tell(pasha, 2, sign * 0.125, 0.0, sign * 0.625)
    assert pasha.highest == 3
    # trial 3 is behind trial 1 by more than epsilon at rung 1
    tell(pasha, 3, sign * 0.0)
    tell(pasha, 3, 0.0, 0.0, sign * 0.6875)
    assert pasha.highest == 9


def test_curves_criss_cross_if_their_order_turned_twice() -> None:
    assert crosses((3, 1, 3), (2, 2, 2))
    assert crosses((1, 3, 1), (2, 2, 2))
    assert crosses((3, 1, 1, 1, 3), (2, 2, 2, 2, 2))
    assert not crosses((1, 1, 3), (2, 2, 2))
    assert not crosses((3, 3, 3), (2, 2, 2))
    assert not crosses((3,), (2,))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(0, 100))
def test_percentiles_are_numpys(values: list[float], q: int) -> None:
    assert percentile(values, q) == pytest.approx(float(np.percentile(values, q)), abs=1e-9)


def test_stable_rankings_save_the_steps_of_asha() -> None:
    def curve(trial: int, step: int, config: Any) -> float:
        return float(trial * 37 % 100)

    few = Run(scheduler("pasha", max_steps=81), curve, 60, 4).go()
    many = Run(scheduler({"asha": {"type": "promotion"}}, max_steps=81), curve, 60, 4).go()
    assert max(len(v) for v in few.values.values()) == 3
    assert max(len(v) for v in many.values.values()) == 81
    assert few.steps * 2 < many.steps
    best = max(range(60), key=lambda t: curve(t, 1, {}))
    assert best in few.reached(3)
    assert set(few.outcome.values()) == {"stopped"}


def test_unstable_rankings_go_as_far_as_asha() -> None:
    def curve(trial: int, step: int, config: Any) -> float:
        ahead = sum(step >= rung for rung in (3, 9, 27))
        # a new order from each rung on, none between them
        return float((trial * 37 + ahead * 29 * trial) % 101)

    run = Run(
        scheduler("pasha", max_steps=81),
        curve,
        100,
        4,
        breaks={5: 1, 17: 2},
        lost={(8, 1), (20, 3)},
    ).go()
    assert max(len(v) for v in run.values.values()) == 81
    assert set(run.outcome) == set(range(100))


@pytest.mark.parametrize("trials", [1, 2, 5])
def test_few_trials_end(trials: int) -> None:
    run = Run(scheduler("pasha", max_steps=27), lambda t, s, c: float(t), trials, 2).go()
    assert set(run.outcome) == set(range(trials))
    assert len(run.values[trials - 1]) == 3


def test_its_options_are_checked_under_its_name() -> None:
    with pytest.raises(SpecError, match=r"schedule\.pasha\.reduction_factor"):
        scheduler({"pasha": {"reduction_factor": 1}})
    with pytest.raises(SpecError, match=r"schedule\.pasha\.grace_period"):
        scheduler({"pasha": {"grace_period": 0}})
