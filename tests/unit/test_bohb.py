"""The sampler "bohb": its densities by hand, the budget it learns from, and that it finds what is
good.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from regrow.search.errors import SpecError
from regrow.search.samplers import make
from regrow.search.samplers.base import Result, Sampler
from regrow.search.samplers.bohb_model import Kde
from regrow.search.space.setting import Setting
from tests.unit.mixed_space import LINE, MIXED, loss, setting
from tests.unit.replaying import Replayed, best, on_paper, seed_of

GREEDY = {"bohb": {"random_fraction": 0.0}}


def kde(levels: list[int], **changes: Any) -> Kde:
    defaults: dict[str, Any] = {
        "least": len(levels) + 1,
        "top": 15,
        "samples": 64,
        "factor": 3.0,
        "narrowest": 1e-3,
    }
    return Kde(levels=levels, **(defaults | changes))


def xs(sampler: Sampler, count: int = 40) -> list[float]:
    return [on_paper(sampler.ask(n, seed_of(n))).config["x"] for n in range(100, 100 + count)]


def curve(
    number: int, x: float, *values: float, status: Any = "done", steps: tuple[int, ...] = (1, 3, 9)
) -> Result:
    told = list(zip(steps, values, strict=False))
    return Result(
        number=number, config={"x": x}, status=status, value=min(values), intermediate=told
    )


# ---- the densities


@pytest.mark.parametrize(
    ("count", "good", "bad"),
    [
        (100, 15, 85),
        (30, 4, 26),
        (6, 4, 4),
        (27, 4, 23),
    ],  # equation 3 with d = 3, so N_min = 4; the part is rounded down
)
def test_the_best_and_the_worst_points_of_equation_3(count: int, good: int, bad: int) -> None:
    parts = kde([0, 0, 0])._split(np.arange(count, dtype=float).reshape(-1, 1))
    assert [p[:, 0].tolist() for p in parts] == [[*range(good)], [*range(count - bad, count)]]


def test_bandwidths_are_scotts_rule_within_bounds() -> None:
    points = np.array([[0.1, 0.5, 0.0], [0.2, 0.5, 1.0], [0.6, 0.5, 2.0], [0.9, 0.5, 0.0]])
    _, widths = kde([0, 0, 3])._density(points)
    scott = 1.06 * 4 ** (-1 / 7)
    assert widths[0] == pytest.approx(scott * statistics.pstdev([0.1, 0.2, 0.6, 0.9]))
    assert widths[1] == 1e-3
    assert widths[2] == 2 / 3 < scott * statistics.pstdev([0, 1, 2, 0])


def test_the_density_is_a_mean_of_products_of_kernels() -> None:
    data, widths = np.array([[0.1, 2.0], [0.7, 0.0]]), np.array([0.2, 0.3])
    points = np.array([[0.3, 2.0], [0.5, 1.0]])
    expected = [
        (norm.pdf(0.3, 0.1, 0.2) * 0.7 + norm.pdf(0.3, 0.7, 0.2) * 0.15) / 2,
        (norm.pdf(0.5, 0.1, 0.2) * 0.15 + norm.pdf(0.5, 0.7, 0.2) * 0.15) / 2,
    ]
    np.testing.assert_allclose(kde([0, 3])._pdf(data, widths, points), expected)


def test_candidates_are_truncated_normals_about_good_points() -> None:
    data, widths = np.array([[0.02, 1.0]]), np.array([0.1, 0.4])
    drawn = kde([0, 4], samples=4000)._candidates(data, widths, np.random.RandomState(0))
    assert drawn[:, 0].min() >= 0
    assert drawn[:, 0].max() <= 1
    # A normal of sd 0.3 about 0.02, cut at 0: half of what is left lies below its median.
    low, high = norm.cdf(0, 0.02, 0.3), norm.cdf(1, 0.02, 0.3)
    assert np.median(drawn[:, 0]) == pytest.approx(norm.ppf((low + high) / 2, 0.02, 0.3), abs=0.02)
    kept = Counter(drawn[:, 1].tolist())
    assert kept[1.0] / 4000 == pytest.approx(0.6 + 0.4 / 4, abs=0.03)
    assert kept[0.0] / 4000 == pytest.approx(0.1, abs=0.02)


def test_inactive_parameters_take_the_values_of_a_point_where_they_are_active() -> None:
    nan = math.nan
    data = np.array([[0.1, nan, nan, nan], [0.2, 0.3, 2.0, nan], [0.4, 0.6, 1.0, nan]])
    full = kde([0, 0, 3, 3])._imputed(data, np.random.RandomState(1))
    assert full[0, 1:3].tolist() in ([0.3, 2.0], [0.6, 1.0])  # both from one point
    assert set(full[:, 3]) <= {0.0, 1.0, 2.0}
    np.testing.assert_array_equal(full[1:, :3], data[1:, :3])
    many = kde([0, 0, 3, 3])._imputed(
        np.concatenate([data[:1]] * 50 + [data[1:]]), np.random.RandomState(1)
    )
    assert 10 < np.count_nonzero(many[:50, 1] == 0.3) < 40  # each has its own point


def test_the_best_candidate_has_the_largest_ratio() -> None:
    good = [[0.1 + k / 1000] for k in range(15)]
    bad = [[0.5 + k / 200] for k in range(85)]
    drawn = [kde([0]).draw(good + bad, seed)[0] for seed in range(20)]
    assert all(abs(u - 0.1) < 0.1 for u in drawn)


# ---- what it learns from


def test_it_learns_from_the_largest_budget_with_enough_trials() -> None:
    """Low is good after 1 step and high after 9; d + 3 = 4 trials have to have a value there."""
    sampler = make(GREEDY, setting(max_steps=9))
    for number in range(20):
        x = (number + 0.5) / 20
        sampler.tell(curve(number, x, x, status="stopped"))
    assert statistics.median(xs(sampler)) < 0.3
    for number in range(20, 23):
        x = (number - 19) / 4
        sampler.tell(curve(number, x, x, 1 - x, 1 - x))
    assert statistics.median(xs(sampler)) < 0.3
    sampler.tell(curve(23, 0.9, 0.9, 0.1, 0.1))
    assert statistics.median(xs(sampler)) > 0.6


def test_a_budget_is_a_step_at_which_a_trial_ended() -> None:
    """All have values at step 3, where none ended: what counts is step 1."""
    sampler = make(GREEDY, setting(max_steps=9))
    for number in range(8):
        x = (number + 0.5) / 8
        sampler.tell(curve(number, x, x, 1 - x, status="running"))
    assert xs(sampler) == xs(make("random", setting()))  # nothing has ended
    sampler.tell(curve(8, 0.5, 0.5, status="stopped"))
    assert statistics.median(xs(sampler)) < 0.4
    sampler.tell(curve(9, 0.5, 0.5, 0.5, status="stopped"))
    assert statistics.median(xs(sampler)) > 0.6


def test_equal_values_go_by_number_whatever_the_order_of_telling() -> None:
    told = [curve(n, (n + 0.5) / 20, 1.0, status="stopped") for n in range(20)]
    one, other = (make(GREEDY, setting(max_steps=9)) for _ in range(2))
    for a, b in zip(told, reversed(told), strict=True):
        one.tell(a)
        other.tell(b)
    assert xs(one) == xs(other)


def test_more_is_better_where_the_mode_says_so() -> None:
    sampler = make(GREEDY, Setting(space=LINE, modes=("max",), max_steps=9))
    for number in range(20):
        sampler.tell(curve(number, (number + 0.5) / 20, number, status="stopped"))
    assert statistics.median(xs(sampler)) > 0.7


def test_failed_trials_teach_nothing_and_earlier_ones_do() -> None:
    sampler = make(GREEDY, setting(max_steps=9))
    for number in range(30):
        sampler.tell(
            Result(
                number=number,
                config={"x": 0.9},
                status="failed",
                value=-9.0,
                intermediate=[(9, -9.0)],
            )
        )
        sampler.tell(Result(number=number + 30, config={"x": 0.9}, status="done"))
        sampler.tell(Result(number=number + 200, config={"x": 0.9}, status="done", value=math.nan))
        # of another space
        sampler.tell(Result(number=-number - 40, config={"y": 0.9}, status="done", value=-9.0))
    assert xs(sampler) == xs(make("random", setting()))
    for number in range(-20, 0):
        x = -number / 20
        sampler.tell(Result(number=number, config={"x": x}, status="done", value=x))
    assert statistics.median(xs(sampler)) < 0.3


def test_a_third_of_the_proposals_is_random() -> None:
    told = [curve(n, (n + 0.5) / 20, float(n), status="stopped") for n in range(20)]
    sampler, random = make("bohb", setting(max_steps=9)), make("random", setting())
    for result in told:
        sampler.tell(result)
    same = sum(a == b for a, b in zip(xs(sampler, 300), xs(random, 300), strict=True))
    assert 75 < same < 125


def test_it_beats_random_search() -> None:
    """By the median of what it proposes with a model; a third of its proposals is random, so the
    mean says less.
    """
    for k in range(3):
        medians = [statistics.median(losses(name, k)[60:]) for name in ("bohb", "random")]
        assert medians[0] < medians[1] / 2


def losses(search: Any, k: int) -> list[float]:
    """Of 120 trials of the k-th function; the seeds of proposals are the same for each."""
    found: list[float] = []

    def shifted(config: Mapping[str, Any]) -> float:
        found.append(
            loss(
                {
                    **config,
                    "lr": config["lr"] * 10 ** (k - 2),
                    "width": config["width"] + (k - 2) / 8,
                }
            )
        )
        return found[-1]

    best(search, Setting(space=MIXED, modes=("min",), max_steps=9), shifted, 120)
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"min_points_in_model": 5},
            "search.bohb.min_points_in_model: 5: is below 6; write 6, the number of parameters plus 1, or more",
        ),
        ({"min_points_in_model": "many"}, "is not a whole number"),
        ({"top_n_percent": 0}, "is not between 0 and 100"),
        ({"num_samples": 0}, "is below 1"),
        ({"random_fraction": 1.5}, "is not between 0 and 1"),
        ({"bandwidth_factor": 0.0}, "search.bohb.bandwidth_factor: 0.0: is not above 0"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make({"bohb": options}, setting(MIXED))


def test_a_replay_proposes_the_same() -> None:
    run = Replayed(
        search=GREEDY, setting=setting(MIXED, max_steps=4), objective=loss, every=2
    ).run()
    assert run.compared > 40
