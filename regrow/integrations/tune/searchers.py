"""Translates Ray Tune's search algorithms to our samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regrow.integrations.tune.hyperopt_space import is_hyperopts
from regrow.integrations.tune.recorded import SEARCHERS
from regrow.integrations.tune.recorded import given as given_to
from regrow.search.errors import SpecError

_IN_TUNE = ("BasicVariantGenerator",)
"""Searchers whose replacement is not announced: they also draw at random."""
_INERT = {
    "metric",
    "mode",
    "space",
    "points_to_evaluate",
    "max_concurrent",
    "random_state",
    "seed",
    "random_state_seed",
    "n_initial_points",
    "gamma",
    "constant_grid_search",
    "evaluated_rewards",
    "optimizer",
    "budget",
    "verbose",
    "analysis",
    "patience",
    "skip_duplicate",
    "utility_kwargs",
    "random_search_steps",
    "algo",
    "bohb_config",
    "sampler",
    "study_name",
    "storage",
    "domain",
    "ax_client",
    "enforce_sequential_optimization",
    "parameter_constraints",
    "outcome_constraints",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Searching:
    """The translation of a Tune search algorithm. `space`: one that was given to it instead of to
    the Tuner.
    """

    search: str | dict[str, Any] = "random"
    concurrency: int | None = None
    repeats: int = 1
    seed: int = 0
    metric: Any = None
    mode: Any = None
    space: Mapping[str, Any] | None = None
    points: tuple[dict[str, Any], ...] = field(default=())


def searching(algorithm: Any, say: Callable[[str], None]) -> Searching:
    """Translate a search algorithm; None: random, as in Tune. Raises SpecError for one without a
    counterpart.
    """
    concurrency, repeats = None, 1
    while type(algorithm).__name__ in ("ConcurrencyLimiter", "Repeater"):
        if type(algorithm).__name__ == "Repeater":
            repeats = int(algorithm.repeat)
        else:
            concurrency = int(algorithm.max_concurrent)
        algorithm = algorithm.searcher
    if algorithm is None:
        return Searching(concurrency=concurrency)
    name = type(algorithm).__name__
    if isinstance(algorithm, str):
        name = algorithm
    search = next(
        (ours for place, ours in SEARCHERS.items() if name == place.partition(":")[2]), None
    )
    search = {
        "random": "random",
        "variant_generator": "random",
        "optuna": "tpe",
        "hyperopt": "tpe",
    }.get(name, search)
    if search is None:
        known = ", ".join(place.partition(":")[2] for place in SEARCHERS)
        raise SpecError("search_alg", name, "has no counterpart", f"take one of {known}")
    given = {} if isinstance(algorithm, str) else given_to(algorithm)
    if name not in _IN_TUNE:
        say(f"search: {name} is regrow's {search}")
    seed = next(
        (
            given[key]
            for key in ("seed", "random_state_seed", "random_state")
            if isinstance(given.get(key), int)
        ),
        0,
    )
    startup = given.get("n_initial_points")
    return Searching(
        search={"tpe": {"n_startup_trials": startup}}
        if search == "tpe" and isinstance(startup, int)
        else search,
        concurrency=concurrency or given.get("max_concurrent") or None,
        repeats=repeats,
        seed=seed,
        metric=given.get("metric"),
        mode=given.get("mode"),
        space=_own_space(name, given),
        points=tuple(given.get("points_to_evaluate") or ()),
    )


def _own_space(name: str, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the space that was given to the searcher, as Tune's domains or as bounds. Raises
    SpecError for a space of the searcher's library.
    """
    space = given.get("space")
    if not space:
        return None
    if isinstance(space, Mapping):
        if all(
            isinstance(v, tuple) and len(v) == 2 and all(isinstance(n, int | float) for n in v)
            for v in space.values()
        ):
            from ray import tune

            return {key: tune.uniform(*bounds) for key, bounds in space.items()}
        from ray.tune.search import sample

        if is_hyperopts(space):
            return space
        own = [
            v
            for v in space.values()
            if not isinstance(v, sample.Domain | dict | int | float | str | bool)
        ]
        if not own:
            return space
    what = (
        "a function that defines it as it runs"
        if callable(space)
        else "in the words of its own library"
    )
    raise SpecError(
        "search_alg",
        name,
        f"has a space that is {what}",
        "write it in Tune's words, as param_space",
    )
