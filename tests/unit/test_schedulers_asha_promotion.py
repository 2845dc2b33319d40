"""Promotion-type ASHA against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.search.errors import SpecError
from regrow.search.mode import Mode
from regrow.search.schedulers.base import Verdict
from tests.unit.scheduling import Run, arrive, by_number, scheduler


def test_algorithm_2_by_hand() -> None:
    asha = scheduler({"asha": {"type": "promotion"}}, max_steps=27)
    assert arrive(asha, (0, 1, 0.5), (1, 1, 0.4)) == ["pause", "pause"]
    assert asha.promote(complete=False) is None  # floor(2 / 3) = 0
    assert arrive(asha, (2, 1, 0.3)) == ["pause"]
    assert asha.promote(complete=False) == 0  # floor(3 / 3) = 1, and 0.5 is the best
    asha.started(0)
    assert asha.promote(complete=False) is None
    assert arrive(asha, (3, 1, 0.45), (4, 1, 0.1)) == ["pause", "pause"]
    assert arrive(asha, (5, 1, 0.2)) == ["pause"]  # now two of six: 0.5, which is gone, and 0.45
    assert asha.promote(complete=False) == 3
    assert asha.promote(complete=False) == 3, "it isn't started yet"
    asha.started(3)
    assert asha.promote(complete=False) is None


def test_one_that_would_be_the_next_job_goes_on_without_a_pause() -> None:
    asha = scheduler({"asha": {"type": "promotion"}}, max_steps=27)
    assert arrive(asha, (0, 1, 0.1), (1, 1, 0.2), (2, 1, 0.9)) == ["pause", "pause", "continue"]
    assert asha.first(2, 1) == 3


def test_one_that_may_go_on_waits_for_a_better_one_that_may_too() -> None:
    asha = scheduler({"asha": {"type": "promotion"}}, max_steps=27)
    arrive(asha, *((t, 1, 0.1) for t in range(5)))
    asha.promote(complete=False)
    # two of six: 0.9 is first, 0.1 of trial 0 second and waits; the new one is the better of them
    assert arrive(asha, (5, 1, 0.9)) == ["continue"]
    # then, of nine, three: 0.8 goes before 0.1, which stays the next job
    assert arrive(asha, (6, 1, 0.05), (7, 1, 0.05), (8, 1, 0.07)) == ["pause"] * 3
    assert asha.promote(complete=False) == 0


def test_the_highest_rung_is_served_first() -> None:
    asha = scheduler({"asha": {"type": "promotion"}}, max_steps=27)
    arrive(asha, *((t, 1, 9.0 - t) for t in range(12)))
    for trial in (0, 1, 2):
        assert asha.promote(complete=False) == trial
        asha.started(trial)
    # the fourth of twelve waits at rung 1 while three come to rung 3
    assert arrive(asha, (0, 3, 1.0), (1, 3, 5.0)) == ["pause", "pause"]
    assert arrive(asha, (2, 3, 3.0)) == ["pause"]  # trial 1 is the next job
    assert asha.promote(complete=False) == 1
    # one that comes to rung 1 now and is the best there would be the second job
    assert arrive(asha, (12, 1, 99.0)) == ["pause"]
    asha.started(1)
    assert asha.promote(complete=False) == 12
    asha.started(12)
    assert arrive(asha, (13, 1, 0.0), (14, 1, 98.0)) == ["pause", "continue"]


def test_with_ties_the_first_to_come_is_promoted() -> None:
    asha = scheduler({"asha": {"type": "promotion"}}, max_steps=9)
    assert arrive(asha, (4, 1, 0.5), (2, 1, 0.5), (0, 1, 0.5)) == ["pause"] * 3
    assert asha.promote(complete=False) == 4


def test_one_that_cannot_pause_counts_as_promoted() -> None:
    asha = scheduler({"asha": {"type": "promotion"}}, max_steps=9)
    asha.tell(0, [0.9], Verdict(action="continue", until=3))
    arrive(asha, (1, 1, 0.1), (2, 1, 0.2))
    assert asha.promote(complete=False) is None


def test_one_that_fails_after_its_promotion_holds_up_nobody() -> None:
    run = Run(
        scheduler({"asha": {"type": "promotion"}}, max_steps=9),
        by_number,
        9,
        3,
        breaks={8: 2, 7: 2},
    ).go()
    assert set(run.outcome) == set(range(9))
    assert max(len(v) for v in run.values.values()) == 9


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_when_nothing_new_comes_the_best_goes_on_to_the_end(trials: int) -> None:
    run = Run(scheduler({"asha": {"type": "promotion"}}, max_steps=9), by_number, trials, 1).go()
    assert run.outcome[trials - 1] == "done"
    assert Counter(run.outcome.values())["done"] == 1


def algorithm_2(costs: list[int], eta: int, rungs: list[int], jobs: int) -> list[tuple[int, int]]:
    """The jobs (trial, rung) of one worker, as the paper writes get_job, with all of its
    sorting.
    """
    results: list[list[int]] = [[] for _ in rungs]
    promoted: list[set[int]] = [set() for _ in rungs]
    done = []
    new = 0
    for _ in range(jobs):
        for k in reversed(range(len(rungs) - 1)):
            top = sorted(results[k], key=lambda t: (costs[t % len(costs)], results[k].index(t)))[
                : len(results[k]) // eta
            ]
            promotable = [t for t in top if t not in promoted[k]]
            if promotable:
                promoted[k].add(promotable[0])
                trial, rung = promotable[0], k + 1
                break
        else:
            trial, rung, new = new, 0, new + 1
        results[rung].append(trial)
        done.append((trial, rungs[rung]))
    return done


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.integers(2, 4),
    st.sampled_from(["min", "max"]),
)
def test_a_worker_does_the_jobs_of_algorithm_2(values: list[int], eta: int, mode: Mode) -> None:
    sign = -1.0 if mode == "max" else 1.0
    asha = scheduler(
        {"asha": {"type": "promotion", "reduction_factor": eta}}, max_steps=eta**3, mode=mode
    )
    run = Run(asha, lambda t, s, c: sign * values[t % len(values)], 10**6).go(
        rounds=3 * len(values)
    )
    jobs = algorithm_2(values, eta, [1, eta, eta**2, eta**3], 5 * len(values))
    decided = [(trial, step) for trial, step, _ in run.log]
    assert decided == [job for job in jobs if job[1] < eta**3][: len(decided)]
    assert len(decided) >= min(3, len(values))


def test_another_type_is_refused() -> None:
    for name in ("asha", "async_hyperband"):
        with pytest.raises(SpecError, match=rf"schedule\.{name}\.type"):
            scheduler({name: {"type": "pausing"}})
