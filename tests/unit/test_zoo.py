"""The families of `benchmarks/zoo` are what their names promise, those held out as well."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import spearmanr

from benchmarks.clock import Task
from benchmarks.zoo.families import ZOO
from regrow.search import samplers

FIRST_STEP = {"mild": (0.4, 0.95), "useless": (-0.2, 0.2), "misleading": (-0.9, -0.4)}
"""Between which rank correlations of the first step with the last lie."""


def costs(task: Task) -> npt.NDArray[np.float64]:
    """The curves of random configurations."""
    sampler = samplers.make("random", task.spec.setting)
    drawn = [sampler.ask(number, number) for number in range(200)]
    steps = range(1, task.max_steps + 1)
    return np.array([[task.at(one.config, s)[0] for s in steps] for one in drawn if one])


@pytest.mark.parametrize("name", [f"{kind}-{n}" for kind in FIRST_STEP for n in (1, 2, 3)])
def test_the_first_step_tells_what_the_name_says(name: str) -> None:
    curves = costs(ZOO[name].task())
    low, high = FIRST_STEP[name[:-2]]
    assert low < spearmanr(curves[:, 0], curves[:, -1]).statistic < high


@pytest.mark.parametrize("n", [1, 2, 3])
def test_late_bloomers_are_not_told_before_the_middle(n: int) -> None:
    curves = costs(ZOO[f"late-{n}"].task())
    assert spearmanr(curves[:, curves.shape[1] // 2], curves[:, -1]).statistic < 0.4


@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_fails_is_a_third_and_can_be_best_beside_it(n: int) -> None:
    for kind in ("cliff-nan", "failing"):
        assert 0.2 < np.isnan(costs(ZOO[f"{kind}-{n}"].task())).any(axis=1).mean() < 0.45


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_score_with_noise_is_judged_by_what_it_is_worth(n: int) -> None:
    task = ZOO[f"noise-large-{n}"].task()
    drawn = samplers.make("random", task.spec.setting).ask(0, 0)
    assert drawn is not None
    score, _ = task.at(drawn.config, 1)
    worth = task.without_noise(drawn.config, 1, score)
    assert worth != score
    assert worth == task.without_noise(drawn.config, 1, score + 1)


def test_what_is_held_out_has_each_kind() -> None:
    halves = [
        {name[:-2] for name, family in ZOO.items() if family.held_out == held and name[-2] == "-"}
        for held in (False, True)
    ]
    assert halves[0] == halves[1]
