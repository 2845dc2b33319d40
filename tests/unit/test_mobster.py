"""The sampler "mobster": its process by hand, what it learns from cut curves, and that it finds
what is good.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from regrow.search.errors import SpecError
from regrow.search.samplers import curve_process as process
from regrow.search.samplers import make
from regrow.search.samplers.acquisition import CubePoints, largest_improvement
from regrow.search.samplers.base import Result, Watching
from regrow.search.samplers.cube import modelled, position
from regrow.search.samplers.mobster_model import (
    MOST_SEEN,
    MobsterModel,
    normal_scores,
    step_scores,
)
from regrow.search.space import Space
from tests.unit.mixed_space import LINE, MIXED, loss, setting
from tests.unit.replaying import Replayed, best, on_paper, seed_of

SQUARE = Space.parse({"x": {"uniform": [0, 1]}, "y": {"uniform": [0, 1]}})
GREEDY = {"mobster": {"random_fraction": 0.0}}


def cube_of(space: Space) -> CubePoints:
    return CubePoints(space, modelled(space))


def ended(number: int, x: float, *values: float, status: Any = "done") -> Result:
    """A trial with values at steps 1, 3, 9."""
    return Result(
        number=number,
        config={"x": x},
        status=status,
        value=min(values),
        intermediate=list(zip((1, 3, 9), values, strict=False)),
    )


def observed(count: int = 12, dimensions: int = 2) -> process.Observations:
    rng = np.random.default_rng(3)
    points = rng.random((count, dimensions))
    points[:, -1] = np.floor(points[:, -1] * 3)
    return process.Observations(
        points=points,
        times=rng.choice([0.0, 0.5, 1.0], count),
        values=rng.normal(size=count),
        choice=np.array([False] * (dimensions - 1) + [True]),
    )


def test_the_gradient_of_the_fit_is_that_of_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, found = observed(), []

    def noted(loss_of: Any, start: process.Floats, **_: Any) -> Any:
        found.append((loss_of, start))
        return SimpleNamespace(x=start)

    monkeypatch.setattr(process, "minimize", noted)
    process.fit(seen)
    ((loss_of, start),) = found
    for at in (start, start + 0.3, start - 0.5):
        numeric = approx_fprime(at, lambda vector: loss_of(vector)[0], 1e-6)
        assert np.allclose(loss_of(at)[1], numeric, rtol=1e-3, atol=1e-3)


def test_at_the_last_step_it_expects_what_was_seen_there_and_is_sure() -> None:
    seen = observed(8)
    seen.times[:] = 1.0
    h = process.Hyperparameters(
        lengths=np.log([0.3, 0.5]), variance=0.0, time=0.0, noise=math.log(1e-6)
    )
    mean, spread = process.Process(seen, h).at_the_end(seen.points)
    assert np.allclose(mean, seen.values, atol=0.01)
    assert spread.max() < 0.05
    far = np.array([[5.0, 7.0]])
    assert process.Process(seen, h).at_the_end(far)[1] > 0.9


def test_what_got_far_is_not_taken_for_average() -> None:
    """Of twenty the best five continued, where all get better by 1: one that was cut off and average
    is expected to end average.
    """
    xs = np.linspace(0, 1, 20)
    early = 2 * xs
    points, times = np.append(xs, xs[:5])[:, None], np.append(np.zeros(20), np.ones(5))
    seen = process.Observations(
        points=points, times=times, values=np.append(early, early[:5] - 1), choice=np.array([False])
    )
    h = process.fit(seen)
    mean, _ = process.Process(seen, h).at_the_end(np.array([[0.1], [0.7]]))
    assert mean[0] == pytest.approx(-0.8, abs=0.3)
    assert mean[1] > 0.0, "the mean of those that got far is -0.79"


@pytest.mark.parametrize("agrees", [True, False])
def test_it_learns_whether_the_first_step_tells_anything(agrees: bool) -> None:
    rng = np.random.default_rng(1)
    points, last = rng.random((30, 1)), rng.normal(size=30)
    first = last + 0.05 * rng.normal(size=30) if agrees else rng.normal(size=30)
    seen = process.Observations(
        points=np.vstack([points, points]),
        times=np.append(np.zeros(30), np.ones(30)),
        values=np.append(first, last),
        choice=np.array([False]),
    )
    correlation = math.exp(-math.exp(-process.fit(seen).time))
    assert correlation > 0.75 if agrees else correlation < 0.6


def test_equal_costs_have_equal_scores_and_nan_the_worst() -> None:
    scores = normal_scores(np.array([3.0, 1.0, 1.0, math.nan, 2.0]))
    assert scores[1] == scores[2] == min(scores)
    assert np.argmax(scores) == 3
    assert np.isfinite(scores).all()


def test_the_largest_improvement_is_found_in_a_corner() -> None:
    cube = cube_of(Space.parse({f"x{i}": {"uniform": [0, 1]} for i in range(4)}))
    target = np.array([0.95, 0.1, 0.5, 0.9])
    found = largest_improvement(
        lambda points: (np.square(points - target).sum(axis=1), np.full(len(points), 1e-3)),
        0.0,
        np.full((1, 4), 0.5),
        np.full((1, 4), 0.5),
        cube,
        np.random.default_rng(0),
    )
    assert np.abs(found - target).max() < 0.15


def test_with_noise_a_point_that_would_tell_little_promises_little() -> None:
    def expected(points: process.Floats) -> tuple[process.Floats, process.Floats]:
        known = points[:, 0] < 0.5
        return np.where(known, -0.2, 0.0), np.where(known, 0.1, 0.25)

    def found(noise: float | None) -> float:
        good, taken = np.array([[0.25]]), np.empty((0, 1))
        rng = np.random.default_rng(0)
        return largest_improvement(expected, 0.0, good, taken, cube_of(LINE), rng, noise=noise)[0]

    assert found(None) < 0.5
    assert found(1e-6) < 0.5
    assert found(0.3**2) > 0.5


def test_a_cut_curve_teaches() -> None:
    """No trial got further than the first step, and low x is better there."""
    sampler = make(GREEDY, setting(max_steps=9))
    for number in range(12):
        x = (number + 0.5) / 12
        sampler.tell(ended(number, x, x, status="stopped"))
    proposed = [on_paper(sampler.ask(n, seed_of(n))).config["x"] for n in range(12, 32)]
    assert statistics.median(proposed) < 0.2


def test_running_trials_are_learnt_from_and_kept_away_from() -> None:
    sampler = make(GREEDY, setting(max_steps=9))
    assert isinstance(sampler, Watching)
    for number in range(8):
        x = (number + 0.5) / 8
        sampler.tell(ended(number, x, (x - 0.3) ** 2, (x - 0.3) ** 2, (x - 0.3) ** 2))
    free = on_paper(sampler.ask(8, 5)).config["x"]
    sampler.tell(Result(number=8, config={"x": free}, status="running"))
    beside = on_paper(sampler.ask(9, 5)).config["x"]
    assert beside != free
    sampler.watch([ended(8, free, 5.0, 5.0, status="running")])
    assert on_paper(sampler.ask(9, 5)).config["x"] != beside, "it turned out bad"
    sampler.watch([])
    assert on_paper(sampler.ask(9, 5)).config["x"] == beside, "what was watched is forgotten"


def test_what_trials_reported_before_they_failed_teaches() -> None:
    """Half of them fail whatever x is, and those alone know what is good at 0.3."""

    def cost(x: float) -> float:
        return 0.5 + abs(x - 0.3)

    sampler = make(GREEDY, setting(max_steps=9))
    for number in range(12):
        x = (number + 0.5) / 12
        sampler.tell(ended(number, x, cost(x), cost(x), status="failed"))
        sampler.tell(ended(number + 12, x if x > 0.6 else 1.2 - x, 0.95, 0.95))
    asked = [on_paper(sampler.ask(n, seed_of(n))).config["x"] for n in range(24, 44)]
    assert statistics.median(abs(x - 0.3) for x in asked) < 0.1


def test_failed_trials_do_not_count_as_the_best_and_earlier_ones_do() -> None:
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
        sampler.tell(Result(number=number + 200, config={"x": 0.9}, status="done", value=math.nan))
        # of another space
        sampler.tell(Result(number=-number - 40, config={"y": 0.9}, status="done", value=-9.0))
    random = make("random", setting())
    for n in range(300, 310):
        assert on_paper(sampler.ask(n, seed_of(n))) == on_paper(random.ask(n, seed_of(n)))
    for number in range(-20, 0):
        x = -number / 20
        sampler.tell(Result(number=number, config={"x": x}, status="done", value=x))
    assert (
        statistics.median(on_paper(sampler.ask(n, seed_of(n))).config["x"] for n in range(300, 320))
        < 0.2
    )


@pytest.mark.parametrize("fails", ["where x is below 0.5", "by chance, most"])
def test_around_failures_that_have_something_in_common_it_looks_elsewhere_and_others_do_not_lead_it_astray(
    fails: str,
) -> None:
    """The less x the better, so what is good leads to where trials fail."""
    wanted = {"where x is below 0.5": 0.5, "by chance, most": 0.0}[fails]
    failed, ends = 0, []
    for seed in range(4):
        sampler, found = make(GREEDY, setting(SQUARE, max_steps=9)), math.inf
        for n in range(40):
            config = on_paper(sampler.ask(n, seed_of(100 * seed + n))).config
            fault = config["x"] < wanted if wanted else seed_of(100 * seed + n + 7) % 3 > 0
            value = config["x"] + (config["y"] - 0.7) ** 2
            sampler.tell(
                Result(
                    number=n,
                    config=config,
                    status="failed" if fault else "done",
                    value=None if fault else value,
                )
            )
            failed += fault
            found = min(found, math.inf if fault else value)
        ends.append(found)
    assert failed < 120, (
        "of 160: the best lies at the edge of where they fail, and without a model of that it were 140"
    )
    assert statistics.median(ends) < wanted + 0.01


def shifted(k: int) -> Callable[[Mapping[str, Any]], float]:
    return lambda config: loss(
        {**config, "lr": config["lr"] * 10**k, "width": config["width"] + k / 8}
    )


def test_it_finds_what_is_good_in_few_trials() -> None:
    found: dict[str, list[float]] = {"mobster": [], "random": []}
    for name, losses in found.items():
        losses += [best(name, setting(MIXED, max_steps=9), shifted(k), 40) for k in range(-2, 3)]
    assert statistics.median(found["mobster"]) < statistics.median(found["random"]) / 3


def test_more_than_it_can_look_at_is_sampled_by_what_it_is_worth() -> None:
    model = MobsterModel(cube_of(LINE), 4)
    curves = {n: [(0.0, abs(n / 900 - 0.3)), (0.5, abs(n / 900 - 0.3))] for n in range(900)}
    points = {n: [n / 900] for n in curves}
    assert 2 * len(curves) > MOST_SEEN
    assert model.propose(points, curves, {}, [], set(), 0) == pytest.approx([0.3], abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_startup_trials": 1}, "search.mobster.n_startup_trials: 1: is below 2"),
        ({"n_startup_trials": "many"}, "is not a whole number"),
        ({"random_fraction": 1.5}, "is not between 0 and 1"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make({"mobster": options}, setting(MIXED))


@pytest.mark.parametrize("max_steps", [4, None])
def test_a_replay_proposes_the_same(max_steps: int | None) -> None:
    run = Replayed(
        search=GREEDY, setting=setting(MIXED, max_steps=max_steps), objective=loss, every=2
    ).run()
    assert run.compared > 40


@pytest.mark.parametrize(
    "domain",
    [
        {"logint": [1, 8]},
        {"logint": [16, 256]},
        {"int": [1, 9]},
        {"choice": ["a", "b", "c"]},
        {"quniform": [0, 1, 0.25]},
    ],
)
def test_a_point_lies_where_its_configuration_will_be_told_and_every_value_can_be_reached(
    domain: dict[str, Any],
) -> None:
    space = Space.parse({"x": domain})
    (parameter,) = modelled(space)
    settled = cube_of(space).settled(np.linspace(1e-9, 1 - 1e-9, 4001)[:, None])[:, 0]
    values = [parameter.domain.quantile(u) for u in settled.tolist()]
    assert settled == pytest.approx(
        [position(parameter.domain, value) for value in values], abs=1e-12
    )
    assert len({*map(str, values)}) == parameter.domain.cells


def test_what_is_inactive_lies_in_the_middle_also_below_what_is_inactive() -> None:
    deep = {
        "on": {"choice": [True, False]},
        "kind": {"choice": ["a", "b"], "when": {"on": True}},
        "y": {"uniform": [0, 1], "when": {"kind": "a"}},
    }
    settled = cube_of(Space.parse(deep)).settled(
        np.array([[0.1, 0.1, 0.9], [0.1, 0.9, 0.9], [0.9, 0.1, 0.9]])
    )
    assert settled.tolist() == [[0.25, 0.25, 0.9], [0.25, 0.75, 0.5], [0.75, 0.5, 0.5]]


def test_no_configuration_is_proposed_twice_while_there_are_others() -> None:
    space = Space.parse({name: {"choice": ["a", "b", "c", "d"]} for name in ("x", "y")})
    sampler, seen = make(GREEDY, setting(space)), set()
    for number in range(16):
        config = on_paper(sampler.ask(number, seed_of(number))).config
        if number >= 4:
            assert (config["x"], config["y"]) not in seen
        seen.add((config["x"], config["y"]))
        sampler.tell(
            Result(
                number=number, config=config, status="done", value=float("abcd".index(config["x"]))
            )
        )


def test_without_max_steps_a_trial_that_runs_has_no_value_yet() -> None:
    sampler = make(GREEDY, setting())
    assert isinstance(sampler, Watching)
    for number in range(8):
        x = (number + 0.5) / 8
        sampler.tell(
            Result(
                number=number,
                config={"x": x},
                status="done",
                value=(x - 0.3) ** 2,
                intermediate=[(1, 5.0), (7, (x - 0.3) ** 2)],
            )
        )
    sampler.tell(Result(number=8, config={"x": 0.31}, status="running"))
    before = on_paper(sampler.ask(9, 5))
    sampler.watch([Result(number=8, config={"x": 0.31}, status="running", intermediate=[(1, 5.0)])])
    assert on_paper(sampler.ask(9, 5)) == before


def test_of_more_full_trials_than_it_can_look_at_the_best_are_seen() -> None:
    curves = {n: [(1.0, abs(n / 1500 - 0.3))] for n in range(1500)}
    process = MobsterModel(cube_of(LINE), 4).process({n: [n / 1500] for n in curves}, curves)
    assert len(process._seen.values) == MOST_SEEN
    best = sorted(curves, key=lambda n: curves[n][0][1])[:20]
    assert {n / 1500 for n in best} <= {*process._seen.points[:, 0].tolist()}


def test_a_longer_curve_than_this_experiment_has_ends_at_its_last_step() -> None:
    sampler = make(GREEDY, setting(max_steps=9))
    long = [(step, 10.0 / step) for step in range(1, 101)]
    sampler.tell(Result(number=-1, config={"x": 0.5}, status="done", value=0.1, intermediate=long))
    assert sampler._curves[-1][-1] == (1.0, pytest.approx(10 / 9))  # type: ignore[attr-defined]
    assert [time for time, _ in sampler._curves[-1]] == pytest.approx([0.0, 0.5, 1.0])  # type: ignore[attr-defined]


def test_a_number_on_a_logarithmic_scale_is_not_proposed_twice_either() -> None:
    sampler, seen = make(GREEDY, setting(Space.parse({"n": {"logint": [1, 8]}}))), []
    for number in range(8):
        seen.append(on_paper(sampler.ask(number, seed_of(number))).config["n"])
        sampler.tell(
            Result(number=number, config={"n": seen[-1]}, status="done", value=abs(seen[-1] - 3.0))
        )
    late = seen[4:]
    assert len({*late}) == len(late)
    assert not {*late} & {*seen[:4]}


def scored(*curves: list[tuple[float, float]]) -> list[list[float]]:
    """The scores of trials' looks, by trial."""
    whose = np.array([trial for trial, looks in enumerate(curves) for _ in looks])
    times, costs = np.array([look for looks in curves for look in looks]).T
    scores = step_scores(whose, times, costs, np.arange(len(whose)))
    return [scores[whose == trial].tolist() for trial in range(len(curves))]


def test_by_step_a_value_is_compared_with_those_of_the_same_step() -> None:
    """All get better by 5 up to the last step."""
    curves = [[(0.0, 10.0 + trial), (1.0, 5.0 + trial)] for trial in range(5)]
    for early, late in scored(*curves):
        assert early == pytest.approx(late)
    assert scored(*curves)[2] == pytest.approx([0.0, 0.0])


def test_by_step_costs_that_a_difference_of_them_exceeds_rank_as_they_are() -> None:
    with np.errstate(all="raise"):
        scores = scored(*([(0.0, cost), (1.0, -cost)] for cost in (-1.7e308, 0.0, 1e9, 1.7e308)))
    firsts = [first for first, _ in scores]
    assert firsts == sorted(firsts)


def test_by_step_the_average_of_those_that_got_far_is_not_taken_for_average() -> None:
    cut = [[(0.0, 10.0 + trial)] for trial in range(3, 12)]
    found = scored(*[[(0.0, 10.0 + trial), (1.0, 5.0 + trial)] for trial in range(3)], *cut)
    assert found[1][1] < -0.8, "the second of three that got far, of twelve"
    assert found[1] == pytest.approx([found[1][0]] * 2)


def test_by_step_tiny_differences_among_the_leaders_stay_small() -> None:
    curves = [[(1.0, cost)] for cost in (0.100, 0.101, 0.102, 0.5, 0.6, 0.7, 0.8, 0.9)]
    best, second, *_ = (one[0] for one in scored(*curves))
    ranks = normal_scores(np.array([one[0][1] for one in curves]))
    assert second - best < 0.6 * (ranks[1] - ranks[0])


def test_by_step_what_diverged_is_finite_and_bad() -> None:
    curves = [[(1.0, cost)] for cost in (1.0, 2.0, 3.0, math.inf, math.nan, 1e308)]
    scores = [one[0] for one in scored(*curves)]
    assert np.isfinite(scores).all()
    assert max(scores[:3]) < min(scores[3:])
