"""HyperBand and asynchronous HyperBand against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.search.errors import SpecError
from regrow.search.hyperband_plan import brackets
from regrow.search.mode import Mode
from regrow.search.schedulers.asha import AsyncHyperband
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from tests.unit.scheduling import Run, arrive, by_number, scheduler

# ---- HyperBand


def test_the_brackets_of_table_1() -> None:
    found = brackets(81, 3)
    assert [[n for n, _ in bracket] for bracket in found] == [
        [81, 27, 9, 3, 1],
        [34, 11, 3, 1],
        [15, 5, 1],
        [8, 2],
        [5],
    ]
    assert [[r for _, r in bracket] for bracket in found] == [
        [1, 3, 9, 27, 81],
        [3, 9, 27, 81],
        [9, 27, 81],
        [27, 81],
        [81],
    ]
    assert sum(n for bracket in found for n, _ in bracket) == 206


@pytest.mark.parametrize(
    ("most", "eta", "expected"),
    [
        (1, 3, [[(1, 1)]]),
        (2, 3, [[(1, 2)]]),
        (16, 4, [[(16, 1), (4, 4), (1, 16)], [(6, 4), (1, 16)], [(3, 16)]]),
        # s_max = 2; r = 10/9, 10/3, 10; n = 9, ceil(3/2*3) = 5, 3
        (10, 3, [[(9, 1), (3, 3), (1, 10)], [(5, 3), (1, 10)], [(3, 10)]]),
        (
            8,
            2,
            [
                [(8, 1), (4, 2), (2, 4), (1, 8)],
                [(6, 2), (3, 4), (1, 8)],
                [(4, 4), (2, 8)],
                [(4, 8)],
            ],
        ),
    ],
)
def test_brackets_in_whole_steps(
    most: int, eta: int, expected: list[list[tuple[int, int]]]
) -> None:
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
    run = Run(
        scheduler("hyperband", max_steps=81, mode=mode), lambda t, s, c: sign * float(t), 143, slots
    ).go()
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
    # all brackets: sum of (n_i - n_(i+1)) * r_i steps, the promoted ones continue from where they are
    steps = sum(
        (n - (bracket[i + 1][0] if i + 1 < len(bracket) else 0)) * r
        for bracket in brackets(81, 3)
        for i, (n, r) in enumerate(bracket)
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


# ---- asynchronous HyperBand


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
    run = Run(
        scheduler({"async_hyperband": {"type": kind}}, max_steps=9),
        by_number,
        30,
        4,
        breaks={3: 1, 29: 4},
    ).go()
    assert set(run.outcome) == set(range(30))
    assert "done" in run.outcome.values()


def test_it_has_no_more_brackets_than_rungs() -> None:
    for wrong in (0, 4, 2.0, True, "2"):
        with pytest.raises(SpecError, match="brackets"):
            scheduler({"async_hyperband": {"brackets": wrong}}, max_steps=9)


def test_the_first_trials_of_an_eager_one_are_all_in_the_first_bracket() -> None:
    where = Setting(space=Space.parse({"x": {"uniform": [0, 1]}}), modes=("min",), max_steps=27)
    eager, plain = AsyncHyperband(where, eager=30), AsyncHyperband(where)
    first = [[scheduler.first(trial, 0) for trial in range(60)] for scheduler in (eager, plain)]
    assert first[0][:30] == [1] * 30
    assert set(first[1][:30]) > {1}
    assert first[0][30:] == first[1][30:]
    for wrong in (-1, True, "many"):
        with pytest.raises(SpecError, match="eager"):
            AsyncHyperband(where, eager=wrong)  # type: ignore[arg-type]
