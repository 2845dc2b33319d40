"""Successive halving against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.search.errors import SpecError
from tests.unit.scheduling import Run, add, arrive, by_number, scheduler


def reached(run: Run, *steps: int) -> list[int]:
    return [len(run.reached(step)) for step in steps]


def test_exactly_the_best_third_of_a_complete_rung_goes_on() -> None:
    halving = scheduler({"successive_halving": {"n": 9}}, max_steps=9)
    add(halving, 9)
    early = [(t, 1, v) for t, v in enumerate((5.0, 1.0, 7.0, 3.0, 9.0, 2.0))]
    # 1.0 arrives second: nothing is certain. 3.0 is 3rd of 4. 2.0 is 5th of 6, beyond the 3 places:
    # it is certainly out.
    assert arrive(halving, *early) == ["pause", "pause", "pause", "pause", "pause", "stop"]
    assert halving.promote(complete=False) is None
    assert halving.surplus(complete=False) == (1, "place 6 of 6 at rung 1, 3 go on")
    halving.dropped(1)
    assert halving.surplus(complete=False) == (3, "place 4 of 6 at rung 1, 3 go on")
    halving.dropped(3)
    assert halving.surplus(complete=False) is None
    assert arrive(halving, (6, 1, 6.0), (7, 1, 0.0)) == ["pause", "stop"]
    assert halving.surplus(complete=False) == (0, "place 4 of 8 at rung 1, 3 go on")
    halving.dropped(0)
    # 9, 7, 6 are the best; one is to come: the first two are certain whatever it brings
    assert halving.promote(complete=False) == 4
    halving.started(4)
    assert halving.promote(complete=False) == 2
    halving.started(2)
    assert halving.promote(complete=False) is None
    assert arrive(halving, (8, 1, 6.5)) == ["continue"]
    assert halving.surplus(complete=False) == (6, "place 4 of 9 at rung 1, 3 go on")
    assert halving.promote(complete=False) is None


def test_no_more_are_awaited_at_a_rung_than_may_go_on_from_the_one_below() -> None:
    halving = scheduler({"successive_halving": {"n": 9}}, max_steps=9)
    add(halving, 9)
    arrive(halving, *((t, 1, float(t)) for t in range(8, 0, -1)))  # trial 0 is still on its way
    for trial in (8, 7):
        halving.started(trial)
    assert halving.bracket_of(0)._outstanding(1, complete=False) == 3  # 8, 7, and one of 6 and 0


def test_a_rung_with_failed_trials_is_complete_and_they_count_as_the_worst() -> None:
    halving = scheduler({"successive_halving": {"n": 9}}, max_steps=9)
    add(halving, 9)
    assert arrive(halving, (0, 1, 1.0), (1, 1, 2.0)) == ["pause", "pause"]
    for trial in range(2, 8):
        halving.ended(trial, "failed")
    # three places; two known and one to come: all are certain
    assert halving.promote(complete=False) == 1
    halving.started(1)
    assert halving.promote(complete=False) == 0
    halving.started(0)
    halving.ended(8, "failed")
    # rung 3 has two trials, one continues; the other never arrives
    assert arrive(halving, (0, 3, 1.0)) == ["pause"]
    halving.ended(1, "failed")
    assert halving.promote(complete=False) == 0


def test_the_place_of_one_that_failed_after_its_promotion_is_not_filled_again() -> None:
    run = Run(
        scheduler({"successive_halving": {"n": 9}}, max_steps=9), by_number, 9, 3, breaks={8: 2}
    ).go()
    assert run.reached(2) == [6, 7]
    assert run.reached(9) == [7]
    assert run.outcome[8] == "failed"


def test_ties_go_to_the_lower_number() -> None:
    run = Run(
        scheduler({"successive_halving": {"n": 9}}, max_steps=9), lambda t, s, c: 0.5, 9, 3
    ).go()
    assert run.reached(2) == [0, 1, 2]
    assert run.reached(9) == [0]


def test_a_bracket_takes_as_many_that_one_survives_if_n_is_not_given() -> None:
    run = Run(scheduler("successive_halving", max_steps=27), by_number, 27, 4).go()
    assert reached(run, 1, 2, 4, 10) == [27, 9, 3, 1]
    run = Run(
        scheduler({"successive_halving": {"grace_period": 9}}, max_steps=27), by_number, 3, 4
    ).go()
    assert reached(run, 9, 27) == [3, 1]


def test_while_one_bracket_waits_the_next_is_filled() -> None:
    # Trial 0 is slow to come to its rung: one slot is its own. The other slot takes the trials of
    # the second bracket.
    run = Run(
        scheduler(
            {"successive_halving": {"n": 4, "reduction_factor": 2, "grace_period": 4}}, max_steps=8
        ),
        by_number,
        8,
        3,
    ).go()
    assert run.reached(5) == [2, 3, 6, 7]
    assert run.starts[:4] == [0, 1, 2, 3]
    # before any promotion: rung 4 of the first bracket isn't complete yet
    assert run.starts[4] == 4


@pytest.mark.parametrize(
    ("trials", "expected"), [(1, [1, 1, 1]), (2, [2, 1, 1]), (5, [5, 1, 1]), (8, [8, 2, 1])]
)
def test_a_last_bracket_that_is_not_full_is_one_of_the_trials_that_it_has(
    trials: int, expected: list[int]
) -> None:
    run = Run(scheduler("successive_halving", max_steps=9), by_number, trials, 2).go()
    assert reached(run, 1, 2, 9) == expected
    assert run.reached(9) == [trials - 1]


@pytest.mark.parametrize("n", [0, True, "9"])
def test_a_bracket_has_a_whole_number_of_trials(n: Any) -> None:
    with pytest.raises(SpecError, match=r"successive_halving\.n"):
        scheduler({"successive_halving": {"n": n}})


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(1, 6), st.data())
def test_whatever_fails_ends_or_is_lost_no_rung_stalls_and_the_outcome_is_that_of_waiting(
    trials: int, slots: int, data: st.DataObject
) -> None:
    value = data.draw(st.lists(st.integers(0, 6), min_size=trials, max_size=trials))
    breaks = data.draw(st.dictionaries(st.integers(0, trials - 1), st.integers(1, 9), max_size=8))
    lost = data.draw(st.sets(st.tuples(st.integers(0, trials - 1), st.integers(1, 9)), max_size=8))
    run = Run(
        scheduler({"successive_halving": {"n": 9}}, max_steps=9),
        lambda t, s, c: float(value[t]),
        trials,
        slots,
        breaks=breaks,
        lost=set(lost),
    ).go()
    assert set(run.outcome) == set(range(trials))
    for first in range(0, trials, 9):
        members = range(first, min(first + 9, trials))
        alive = sorted((-value[t], t) for t in members)
        for i, step in enumerate((1, 3)):
            at_rung = [key for key in alive if breaks.get(key[1], 99) > step]
            promoted = {t for _, t in at_rung[: max(1, len(members) // 3 ** (i + 1))]}
            failed_there = {
                t for t in members if run.outcome[t] == "failed" and len(run.values[t]) == step
            }
            went = {t for t in members if len(run.values[t]) > step} | failed_there
            assert went == promoted
            alive = [key for key in at_rung if key[1] in promoted]
    # none is asked twice
    assert all(len({s for s, _ in run.verdicts(t)}) == len(run.verdicts(t)) for t in run.values)


@settings(max_examples=60)
@given(
    st.permutations(range(9)),
    st.sets(st.integers(0, 8), max_size=8),
    st.lists(st.integers(0, 4), min_size=9, max_size=9),
)
def test_whoever_comes_late_the_same_trials_go_on(
    order: list[int], failed: set[int], value: list[int]
) -> None:
    halving = scheduler({"successive_halving": {"n": 9}}, max_steps=9)
    add(halving, 9)
    went: set[int] = set()
    for trial in order:
        if trial in failed:
            halving.ended(trial, "failed")
        else:
            (action,) = arrive(halving, (trial, 1, float(value[trial])))
            if action == "continue":
                went.add(trial)
            if action == "stop":
                halving.ended(trial, "stopped")
        while (promoted := halving.promote(complete=False)) is not None:
            halving.started(promoted)
            went.add(promoted)
        while (pair := halving.surplus(complete=False)) is not None:
            halving.dropped(pair[0])
            halving.ended(pair[0], "stopped")
    assert went == set(sorted(set(range(9)) - failed, key=lambda t: (-value[t], t))[:3])
