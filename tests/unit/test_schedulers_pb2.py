"""PB2: its model against a direct computation, its choices where the best is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from regrow.search.errors import SpecError
from regrow.search.schedulers.base import Candidate, Verdict
from regrow.search.schedulers.pb2 import Pb2
from regrow.search.schedulers.pb2_model import Bandit, kernel, likelihood
from regrow.search.space import Space
from tests.unit.scheduling import Run, scheduler

SPACE = Space.parse(
    {
        "lr": {"loguniform": [1e-4, 1.0]},
        "drop": {"uniform": [0, 1]},
        "layers": {"int": [1, 8]},
        "act": {"choice": ["a", "b"]},
    }
)
LR = Space.parse({"lr": {"loguniform": [1e-4, 1.0]}})


def made(count: int, space: Space = SPACE, seed: int = 0, **options: Any) -> Pb2:
    pb2: Pb2 = scheduler({"pb2": options}, max_steps=200, trials=count, space=space, seed=seed)
    for trial in range(count):
        u = (trial + 0.5) / count
        config = {p.name: p.domain.quantile(u) for p in space.flat}
        pb2.added(Candidate(trial=trial, config=config))
    return pb2


def test_the_kernel_forgets_with_time() -> None:
    x = np.array([[0.0, 0.3], [2.0, 0.3], [2.0, 0.7]])
    found = kernel(x, x, 0.5, 0.1)
    # the same parameters, two intervals later: 0.9 ** (2 / 2)
    assert found[0, 1] == pytest.approx(0.9)
    assert found[1, 2] == pytest.approx(math.exp(-0.16 / 0.5))
    assert found[0, 2] == pytest.approx(0.9 * math.exp(-0.16 / 0.5))


def test_the_likelihood_is_that_of_a_normal_distribution() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.random((6, 3)), rng.normal(size=6)
    covariance = kernel(x, x, 0.4, 0.2) + 0.1 * np.eye(6)
    direct = -0.5 * y @ np.linalg.inv(covariance) @ y - 0.5 * np.linalg.slogdet(covariance)[1]
    assert likelihood(x, y, 0.4, 0.2, 0.1) == pytest.approx(direct, rel=1e-6)


def test_the_bound_is_mean_and_deviation_and_pending_points_lower_it() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.random((8, 3)), rng.normal(size=8)
    none = np.zeros((0, 3))
    free = Bandit(x, y, none)
    at = np.array([[0.5, 0.5, 0.5], [0.1, 0.9, 0.3]])
    bound = free.bound(at)
    root = next(
        (a, b, c)
        for a in (0.1, 0.2, 0.5, 1.0, 2.0)
        for b in (0.01, 0.1, 0.3)
        for c in (1e-3, 1e-1)
        if (a, b) == (free._length, free._forget)
        and np.allclose(free._mean @ free._mean.T, kernel(x, x, a, b) + (c + 1e-8) * np.eye(8))
    )
    k = kernel(x, x, root[0], root[1]) + root[2] * np.eye(8)
    near = kernel(at, x, root[0], root[1])
    z = (y - y.mean()) / y.std()
    mean = near @ np.linalg.inv(k) @ np.clip(z, -2, 2)
    variance = 1 - np.einsum("ij,jk,ik->i", near, np.linalg.inv(k), near)
    assert bound == pytest.approx(
        mean + math.sqrt(0.2 + math.log(0.4 * 8)) * np.sqrt(variance), rel=1e-4
    )
    tried = Bandit(x, y, at[:1]).bound(at)
    assert tried[0] < bound[0]


def curve(trial: int, step: int, config: Mapping[str, Any]) -> float:
    """More is better; grows fastest at lr = 0.01."""
    return step * math.exp(-((math.log10(config["lr"]) + 2) ** 2))


def test_it_goes_where_improvement_was_largest() -> None:
    pb2 = made(8, LR)
    for step in (5, 10, 15):
        for trial in range(8):
            pb2.tell(
                trial,
                [curve(trial, s, pb2._members[trial].config) for s in range(1, step + 1)],
                Verdict(),
            )
    verdict = pb2.decide(0, [curve(0, s, pb2._members[0].config) for s in range(1, 21)])
    assert verdict.action == "restart"
    assert verdict.config is not None
    assert abs(math.log10(verdict.config["lr"]) + 2) < 0.75
    assert verdict.why.startswith(f"exploits trial {verdict.source} (")


def test_gain_is_counted_per_step_and_from_the_source_after_an_exploit() -> None:
    pb2 = made(2, LR)
    pb2.tell(0, [1.0] * 5, Verdict())
    pb2.tell(1, [4.0] * 5, Verdict())
    assert pb2._stretches == []
    pb2.tell(1, [4.0] * 5 + [14.0] * 5, Verdict())
    pb2.tell(0, [1.0] * 10, Verdict(action="restart", source=1, config={"lr": 0.5}))
    assert [(s.step, s.cost, s.gain) for s in pb2._stretches] == [(5, -4.0, 2.0), (5, -1.0, 0.0)]
    pb2.tell(0, [1.0] * 10 + [24.0] * 5, Verdict())
    assert (pb2._stretches[-1].cost, pb2._stretches[-1].gain, pb2._stretches[-1].config) == (
        -14.0,
        2.0,
        {"lr": 0.5},
    )
    pb2.tell(1, [4.0] * 10 + [-math.inf] * 5, Verdict())
    assert len(pb2._stretches) == 3, "no finite gain"


def test_other_parameters_are_explored_as_in_pbt_and_all_of_them_at_first() -> None:
    pb2, pbt = made(4), scheduler("pbt", max_steps=200, trials=4, space=SPACE)
    pbt.chance = "pb2"  # draws go by the name
    for trial in range(4):
        pbt.added(Candidate(trial=trial, config=pb2._members[trial].config))
        for one in (pb2, pbt):
            one.tell(trial, [float(trial)] * 5, Verdict())
    assert pb2.decide(0, [0.0] * 10).config == pbt.decide(0, [0.0] * 10).config
    for trial in range(1, 4):
        for one in (pb2, pbt):
            one.tell(trial, [float(trial)] * 10, Verdict())
    mine, theirs = pb2.decide(0, [0.0] * 10).config, pbt.decide(0, [0.0] * 10).config
    assert mine is not None
    assert {n: mine[n] for n in ("layers", "act")} == {n: theirs[n] for n in ("layers", "act")}
    assert mine["lr"] != theirs["lr"]
    assert all(p.domain.contains(mine[p.name]) for p in SPACE.flat)


def test_it_depends_on_the_seed_alone_and_equal_gains_are_no_trouble() -> None:
    def verdict(seed: int) -> Verdict:
        pb2 = made(4, seed=seed)
        for step in (5, 10, 15):
            for trial in range(4):
                pb2.tell(trial, [float(trial)] * step, Verdict())
        return pb2.decide(0, [0.0] * 20)

    assert verdict(1) == verdict(1)
    assert verdict(1).config != verdict(2).config


@pytest.mark.parametrize("slots", [2, 6])
def test_a_whole_population_with_a_failure_and_a_loss_ends(slots: int) -> None:
    pb2 = scheduler({"pb2": {"perturbation_interval": 4}}, max_steps=30, trials=6, space=LR)
    run = Run(
        pb2,
        curve,
        6,
        slots,
        configs=[{"lr": 10.0 ** (-0.2 * t)} for t in range(6)],
        breaks={5: 14},
        lost={(0, 9)},
    ).go()
    assert run.outcome == {**dict.fromkeys(range(5), "done"), 5: "failed"}
    chosen = [verdict.config["lr"] for _, _, verdict in run.log if verdict.config]
    assert len(chosen) > 3
    assert all(1e-4 <= lr <= 1 for lr in chosen)


def test_it_needs_something_continuous() -> None:
    with pytest.raises(SpecError, match=r"schedule\.pb2\.mutate"):
        scheduler({"pb2": {"mutate": ["layers"]}}, space=SPACE)
    with pytest.raises(SpecError, match=r"schedule\.pb2\.quantile_fraction"):
        scheduler({"pb2": {"quantile_fraction": 0.9}}, space=SPACE)
