"""Searchers of Ray Tune's interface that suggest themselves: what they are told, and that a kill
loses nothing of what they know.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Repeater, Searcher

from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.planning.verify import verify
from tests.unit.tuned import Tuned, translate, tuned

__all__ = ["tuned"]
OptunaSearch = import_module("regrow.tune.search.optuna").OptunaSearch


class Hill(Searcher):
    """Climbs without a seed, and counts what it is told; six configurations, then no more."""

    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.asked, self.told = 0, 0
        self.live: dict[str, float] = {}
        self.best: tuple[float, float] = (-1e9, 0.0)

    def suggest(self, trial_id: str) -> Any:
        if self.asked == 6:
            return Searcher.FINISHED
        self.asked += 1
        self.live[trial_id] = self.best[1] + random.uniform(-1, 1)
        inner = {"asked": self.asked, "told": self.told}
        return {"x": self.live[trial_id], "inner": inner}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        assert result["config/x"] == self.live[trial_id]
        assert result["training_iteration"] == 1 + self.told % 2
        self.told += 1

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        x = self.live.pop(trial_id)
        assert error == (result is None)
        self.best = max(self.best, (result["score"], x)) if result else self.best


def twice(config: dict[str, Any]) -> None:
    for _ in range(2):
        tune.report({"score": -(config["x"] ** 2), "config": 1})
    if config.get("inner", {}).get("asked") == 2:
        raise ValueError("one fails")


def verified(tuned: Tuned) -> bool:
    store = Places.at(tuned.log.state).store(tuned.log.name)
    return verify(read_events(store)).difference is None


@pytest.mark.parametrize("killed", [False, True])
def test_a_searcher_of_the_users_own_class_goes_on_where_it_was(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setenv("REGROW_STATE", tuned.root)
    limited = ConcurrencyLimiter(Hill(), max_concurrent=2)
    grid = tuned(
        twice, {"k": 3, "inner": {"a": 1}}, search_alg=limited, num_samples=9, killed=killed
    )
    assert tuned.log.status == "finished"
    assert verified(tuned)
    seen = [(one.config["k"], *one.config["inner"].values()) for one in grid]
    assert seen == [(3, 1, place + 1, 2 * place) for place in range(6)]
    assert [bool(one.error) for one in grid] == [False, True, *[False] * 4]


def _distributions() -> Any:
    space = {"x": FloatDistribution(-5, 5)}
    return ConcurrencyLimiter(OptunaSearch(space=space, metric="score", mode="max"), 1)


def _nevergrad() -> Any:
    ng = pytest.importorskip("nevergrad")
    space = ng.p.Dict(x=ng.p.Scalar(lower=-5, upper=5))
    made = import_module("regrow.tune.search.nevergrad").NevergradSearch
    return made(ng.optimizers.OnePlusOne, space=space, metric="score", mode="max")


@pytest.mark.parametrize("make", [lambda: Repeater(Hill(), repeat=2), _distributions, _nevergrad])
def test_rays_wrappers_and_searchers_with_spaces_of_their_library_run_as_they_are(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    monkeypatch.setenv("REGROW_STATE", tuned.root)
    grid = tuned(twice, search_alg=make(), num_samples=4, killed=True)
    assert verified(tuned)
    tried = [one.config["x"] for one in grid]
    assert len(tried) == 4
    assert len(set(tried)) == (2 if isinstance(make(), Repeater) else 4)


def test_domains_that_a_searcher_does_not_take_are_an_error() -> None:
    with pytest.raises(SpecError, match="has domains that the searcher does not take"):
        translate(twice, {"y": tune.uniform(0, 1)}, search_alg=Hill())
