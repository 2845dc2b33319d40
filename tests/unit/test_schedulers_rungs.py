"""Promotion-type ASHA, successive halving, HyperBand and asynchronous HyperBand against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.search.errors import SpecError
from regrow.search.hyperband_plan import brackets
from regrow.search.schedulers import Verdict
from regrow.search.space import Mode
from tests.unit.scheduling import Run, add, arrive, scheduler


def by_number(trial: int, step: int, config: Any) -> float:
    """Trial 0 is the worst at every step when more is better."""
    return float(trial)


def reached(run: Run, *steps: int) -> list[int]:
    return [len(run.reached(step)) for step in steps]


# ---- HyperBand ------------------------------------------------------------------------------------------------------


def test_the_brackets_of_table_1() -> None:
    found = brackets(81, 3)
    assert [[n for n, _ in bracket] for bracket in found] == [[81, 27, 9, 3, 1], [34, 11, 3, 1], [15, 5, 1], [8, 2], [5]]
    assert [[r for _, r in bracket] for bracket in found] == [[1, 3, 9, 27, 81], [3, 9, 27, 81], [9, 27, 81], [27, 81], [81]]
    assert sum(n for bracket in found for n, _ in bracket) == 206


@pytest.mark.parametrize(
    ("most", "eta", "expected"),
    [
        (1, 3, [[(1, 1)]]),
        (2, 3, [[(1, 2)]]),
        (16, 4, [[(16, 1), (4, 4), (1, 16)], [(6, 4), (1, 16)], [(3, 16)]]),
        # s_max = 2; r = 10/9, 10/3, 10; n = 9, ceil(3/2*3) = 5, 3
        (10, 3, [[(9, 1), (3, 3), (1, 10)], [(5, 3), (1, 10)], [(3, 10)]]),
        (8, 2, [[(8, 1), (4, 2), (2, 4), (1, 8)], [(6, 2), (3, 4), (1, 8)], [(4, 4), (2, 8)], [(4, 8)]]),
    ],
)
def test_brackets_in_whole_steps(most: int, eta: int, expected: list[list[tuple[int, int]]]) -> None:
    assert brackets(most, eta) == expected


@pytest.mark.parametrize("power", range(1, 12))
def test_a_power_of_eta_is_not_lost_to_a_rounded_logarithm(power: int) -> None:
    assert len(brackets(5**power, 5)) == power + 1  # floor(log(125) / log(5)) is 2 in floats
    assert len(brackets(5**power - 1, 5)) == power


@given(st.integers(1, 3000), st.integers(2, 7))
def test_rungs_rise_and_end_at_the_last_step(most: int, eta: int) -> None:
    for bracket in brackets(most, eta):
        steps = [r for _, r in bracket]
        assert steps == sorted(set(steps))
        assert steps[-1] == most
        assert steps[0] >= 1
        assert bracket[-1][0] >= 1


@pytest.mark.parametrize("slots", [1, 4, 50])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_whole_hyperband_of_81_steps_runs_as_in_the_paper(slots: int, mode: Mode) -> None:
    sign = 1 if mode == "max" else -1
    run = Run(scheduler("hyperband", max_steps=81, mode=mode), lambda t, s, c: sign * float(t), 143, slots).go()
    sizes, start = [81, 34, 15, 8, 5], 0
    expected = [[81, 27, 9, 3, 1], [34, 11, 3, 1], [15, 5, 1], [8, 2], [5]]
    for b, size in enumerate(sizes):
        members = range(start, start + size)
        for n, r in brackets(81, 3)[b]:
            best = list(members)[-n:]
            assert [t for t in run.reached(r) if t in members] == best
        assert [n for n, _ in brackets(81, 3)[b]] == expected[b]
        start += size
    assert Counter(run.outcome.values()) == {"done": 1 + 1 + 1 + 2 + 5, "stopped": 143 - 10}
    # all brackets: sum of (n_i - n_(i+1)) * r_i steps, the promoted ones go on from where they are
    steps = sum(
        (n - (bracket[i + 1][0] if i + 1 < len(bracket) else 0)) * r
        for bracket in brackets(81, 3) for i, (n, r) in enumerate(bracket)
    )
    assert run.steps == steps


def test_the_brackets_begin_again_when_all_have_had_their_turn() -> None:
    run = Run(scheduler("hyperband", max_steps=9), by_number, 9 + 5 + 3 + 9, 2).go()
    assert [t for t in run.reached(9) if t < 17] == [8, 13, 14, 15, 16]
    assert [t for t in run.reached(9) if t >= 17] == [25]


def test_only_the_first_brackets_if_so_wished() -> None:
    run = Run(scheduler({"hyperband": {"brackets": 1}}, max_steps=9), by_number, 18, 3).go()
    assert run.reached(9) == [8, 17]
    for wrong in (0, 4, 2.0, True, "2"):
        with pytest.raises(SpecError, match="brackets"):
            scheduler({"hyperband": {"brackets": wrong}}, max_steps=9)
    with pytest.raises(SpecError, match="reduction_factor"):
        scheduler({"hyperband": {"reduction_factor": 1}}, max_steps=9)


# ---- successive halving ---------------------------------------------------------------------------------------------


def test_exactly_the_best_third_of_a_complete_rung_goes_on() -> None:
    halving = scheduler({"successive_halving": {"n": 9}}, max_steps=9)
    add(halving, 9)
    early = [(t, 1, v) for t, v in enumerate((5.0, 1.0, 7.0, 3.0, 9.0, 2.0))]
    # 1.0 arrives second: nothing is certain. 3.0 is 3rd of 4. 2.0 is 5th of 6, beyond the 3 places: it is certainly out.
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
    # rung 3 has two trials, one goes on; the other never arrives
    assert arrive(halving, (0, 3, 1.0)) == ["pause"]
    halving.ended(1, "failed")
    assert halving.promote(complete=False) == 0


def test_the_place_of_one_that_failed_after_its_promotion_is_not_filled_again() -> None:
    run = Run(scheduler({"successive_halving": {"n": 9}}, max_steps=9), by_number, 9, 3, breaks={8: 2}).go()
    assert run.reached(2) == [6, 7]
    assert run.reached(9) == [7]
    assert run.outcome[8] == "failed"


def test_ties_go_to_the_lower_number() -> None:
    run = Run(scheduler({"successive_halving": {"n": 9}}, max_steps=9), lambda t, s, c: 0.5, 9, 3).go()
    assert run.reached(2) == [0, 1, 2]
    assert run.reached(9) == [0]


def test_a_bracket_takes_as_many_that_one_survives_if_n_is_not_given() -> None:
    run = Run(scheduler("successive_halving", max_steps=27), by_number, 27, 4).go()
    assert reached(run, 1, 2, 4, 10) == [27, 9, 3, 1]
    run = Run(scheduler({"successive_halving": {"grace_period": 9}}, max_steps=27), by_number, 3, 4).go()
    assert reached(run, 9, 27) == [3, 1]


def test_while_one_bracket_waits_the_next_is_filled() -> None:
    # Trial 0 is slow to come to its rung: one slot is its own. The other slot takes the trials of the second bracket.
    run = Run(scheduler({"successive_halving": {"n": 4, "reduction_factor": 2, "grace_period": 4}}, max_steps=8),
              by_number, 8, 3).go()
    assert run.reached(5) == [2, 3, 6, 7]
    assert run.starts[:4] == [0, 1, 2, 3]
    assert run.starts[4] == 4  # before any promotion: rung 4 of the first bracket isn't complete yet


@pytest.mark.parametrize(("trials", "expected"), [(1, [1, 1, 1]), (2, [2, 1, 1]), (5, [5, 1, 1]), (8, [8, 2, 1])])
def test_a_last_bracket_that_is_not_full_is_one_of_the_trials_that_it_has(trials: int, expected: list[int]) -> None:
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
    run = Run(scheduler({"successive_halving": {"n": 9}}, max_steps=9), lambda t, s, c: float(value[t]), trials, slots,
              breaks=breaks, lost=set(lost)).go()
    assert set(run.outcome) == set(range(trials))
    for first in range(0, trials, 9):
        members = range(first, min(first + 9, trials))
        alive = sorted((-value[t], t) for t in members)
        for i, step in enumerate((1, 3)):
            at_rung = [key for key in alive if breaks.get(key[1], 99) > step]
            promoted = {t for _, t in at_rung[: max(1, len(members) // 3 ** (i + 1))]}
            failed_there = {t for t in members if run.outcome[t] == "failed" and len(run.values[t]) == step}
            went = {t for t in members if len(run.values[t]) > step} | failed_there
            assert went == promoted
            alive = [key for key in at_rung if key[1] in promoted]
    assert all(len({s for s, _ in run.verdicts(t)}) == len(run.verdicts(t)) for t in run.values)  # none is asked twice


@settings(max_examples=60)
@given(st.permutations(range(9)), st.sets(st.integers(0, 8), max_size=8), st.lists(st.integers(0, 4), min_size=9, max_size=9))
def test_whoever_comes_late_the_same_trials_go_on(order: list[int], failed: set[int], value: list[int]) -> None:
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


# ---- ASHA, promotion type -------------------------------------------------------------------------------------------


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
    run = Run(scheduler({"asha": {"type": "promotion"}}, max_steps=9), by_number, 9, 3, breaks={8: 2, 7: 2}).go()
    assert set(run.outcome) == set(range(9))
    assert max(len(v) for v in run.values.values()) == 9


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_when_nothing_new_comes_the_best_goes_on_to_the_end(trials: int) -> None:
    run = Run(scheduler({"asha": {"type": "promotion"}}, max_steps=9), by_number, trials, 1).go()
    assert run.outcome[trials - 1] == "done"
    assert Counter(run.outcome.values())["done"] == 1


def algorithm_2(costs: list[int], eta: int, rungs: list[int], jobs: int) -> list[tuple[int, int]]:
    """The jobs (trial, rung) of one worker, as the paper writes get_job, with all of its sorting."""
    results: list[list[int]] = [[] for _ in rungs]
    promoted: list[set[int]] = [set() for _ in rungs]
    done = []
    new = 0
    for _ in range(jobs):
        for k in reversed(range(len(rungs) - 1)):
            top = sorted(results[k], key=lambda t: (costs[t % len(costs)], results[k].index(t)))[: len(results[k]) // eta]
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
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(2, 4), st.sampled_from(["min", "max"]))
def test_a_worker_does_the_jobs_of_algorithm_2(values: list[int], eta: int, mode: Mode) -> None:
    sign = -1.0 if mode == "max" else 1.0
    asha = scheduler({"asha": {"type": "promotion", "reduction_factor": eta}}, max_steps=eta**3, mode=mode)
    run = Run(asha, lambda t, s, c: sign * values[t % len(values)], 10**6).go(rounds=3 * len(values))
    jobs = algorithm_2(values, eta, [1, eta, eta**2, eta**3], 5 * len(values))
    decided = [(trial, step) for trial, step, _ in run.log]
    assert decided == [job for job in jobs if job[1] < eta**3][: len(decided)]
    assert len(decided) >= min(3, len(values))


def test_another_type_is_refused() -> None:
    for name in ("asha", "async_hyperband"):
        with pytest.raises(SpecError, match=rf"schedule\.{name}\.type"):
            scheduler({name: {"type": "pausing"}})


# ---- asynchronous HyperBand -----------------------------------------------------------------------------------------


def test_a_bracket_starts_later_by_a_factor_and_gets_its_share_of_the_trials() -> None:
    hyperband = scheduler("async_hyperband", max_steps=27, seed=3)
    firsts = Counter(hyperband.first(trial, 0) for trial in range(4000))
    # R = 27: 27, 12, 6 and 4 trials in the brackets of HyperBand, 49 in all
    for first, share in ((1, 27 / 49), (3, 12 / 49), (9, 6 / 49), (None, 4 / 49)):
        assert firsts[first] / 4000 == pytest.approx(share, abs=0.03)
    again = scheduler("async_hyperband", max_steps=27, seed=3)
    other = scheduler("async_hyperband", max_steps=27, seed=4)
    assert [again.first(t, 0) for t in range(50)] == [hyperband.first(t, 0) for t in range(50)]
    assert [other.first(t, 0) for t in range(50)] != [hyperband.first(t, 0) for t in range(50)]


def test_trials_are_compared_within_their_bracket() -> None:
    hyperband = scheduler({"async_hyperband": {"brackets": 2}}, max_steps=9)
    early = [t for t in range(40) if hyperband.first(t, 0) == 1]
    late = [t for t in range(40) if hyperband.first(t, 0) == 3]
    assert arrive(hyperband, *((t, 3, 1.0) for t in late[:3])) == ["continue"] * 3
    assert arrive(hyperband, (early[0], 1, 0.0), (early[0], 3, 0.0)) == ["continue", "continue"]
    assert arrive(hyperband, (late[3], 3, 0.0)) == ["stop"]


def test_with_one_bracket_it_is_asha() -> None:
    values = (0.5, 0.4, 0.6, 0.55, 0.7, 0.9, 0.65, 0.8, 0.62)
    for kind in ("stopping", "promotion"):
        one = scheduler({"async_hyperband": {"brackets": 1, "type": kind}})
        asha = scheduler({"asha": {"type": kind}})
        arrivals = [(t, 1, v) for t, v in enumerate(values)]
        assert arrive(one, *arrivals) == arrive(asha, *arrivals)
        assert one.promote(complete=True) == asha.promote(complete=True)


@pytest.mark.parametrize("kind", ["stopping", "promotion"])
def test_every_trial_ends(kind: str) -> None:
    run = Run(scheduler({"async_hyperband": {"type": kind}}, max_steps=9), by_number, 30, 4, breaks={3: 1, 29: 4}).go()
    assert set(run.outcome) == set(range(30))
    assert "done" in run.outcome.values()


def test_it_has_no_more_brackets_than_rungs() -> None:
    for wrong in (0, 4, 2.0, True, "2"):
        with pytest.raises(SpecError, match="brackets"):
            scheduler({"async_hyperband": {"brackets": wrong}}, max_steps=9)
