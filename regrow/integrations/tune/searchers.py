"""Translates Ray Tune's search algorithms to our samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regrow.integrations.tune.arguments import Arguments
from regrow.integrations.tune.hyperopt_space import is_hyperopts
from regrow.integrations.tune.recorded import SEARCHERS
from regrow.integrations.tune.recorded import given as given_to
from regrow.search.errors import SpecError

_BY_NAME = {"random": "random", "variant_generator": "random", "optuna": "tpe", "hyperopt": "tpe"}
"""Our sampler for each searcher that is given by its name."""
_IN_TUNE = ("BasicVariantGenerator",)
"""Searchers whose replacement is not announced: they also draw at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searching:
    """A translated search algorithm. `space`: one that it was given instead of the Tuner;
    `defined`: a function of Optuna's trial that suggests it.
    """

    search: str | dict[str, Any] = "random"
    concurrency: int | None = None
    repeats: int = 1
    seed: int = 0
    metric: Any = None
    mode: Any = None
    space: Mapping[str, Any] | None = None
    defined: Callable[[Any], dict[str, Any] | None] | None = None
    points: tuple[dict[str, Any], ...] = field(default=())


def searching(algorithm: Any, say: Callable[[str], None]) -> Searching:
    """Translate a search algorithm; None: random. Raises SpecError without a counterpart."""
    concurrency, repeats = None, 1
    while type(algorithm).__name__ in ("ConcurrencyLimiter", "Repeater"):
        if type(algorithm).__name__ == "Repeater":
            repeats = int(algorithm.repeat)
        else:
            concurrency = int(algorithm.max_concurrent)
        algorithm = algorithm.searcher
    if algorithm is None:
        return Searching(concurrency=concurrency)
    name = algorithm if isinstance(algorithm, str) else type(algorithm).__name__
    known = {place.partition(":")[2]: ours for place, ours in SEARCHERS.items()}
    search = {**known, **_BY_NAME}.get(name)
    if search is None:
        hint = f"take one of {', '.join(known)}"
        raise SpecError("search_alg", name, "has no counterpart", hint)
    given = Arguments(name, {}, {}) if isinstance(algorithm, str) else given_to(algorithm)
    if name not in _IN_TUNE:
        say(f"search: {name} is regrow's {search}")
    seeds = [given.get(key) for key in ("seed", "random_state_seed", "random_state")]
    seed = next((one for one in seeds if isinstance(one, int)), 0)
    startup = given.get("n_initial_points")
    begins = search == "tpe" and isinstance(startup, int)
    space = given.get("space")
    defined = space if callable(space) and search == "tpe" else None
    form: str | dict[str, Any] = {"tpe": {"n_startup_trials": startup}} if begins else search
    if defined is not None:
        form = {"define_by_run": {"sampler": "TPESampler"}}
    found = Searching(
        search=form,
        concurrency=concurrency or given.get("max_concurrent") or None,
        repeats=repeats,
        seed=seed,
        metric=given.get("metric"),
        mode=given.get("mode"),
        space=None if defined is not None else _own_space(name, given),
        defined=defined,
        points=tuple(given.get("points_to_evaluate") or ()),
    )
    for line in given.unused():
        say(line)
    return found


def _own_space(name: str, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the searcher's space, of Tune's domains or bounds. SpecError for its library's."""
    space = given.get("space")
    if not space:
        return None
    if isinstance(space, Mapping):
        from ray import tune
        from ray.tune.search import sample

        if all(map(_is_bounds, space.values())):
            return {key: tune.uniform(*bounds) for key, bounds in space.items()}
        plain = (sample.Domain, dict, int, float, str, bool)
        if is_hyperopts(space) or all(isinstance(v, plain) for v in space.values()):
            return space
    hint = "write it in Tune's words, as param_space"
    raise SpecError("search_alg", name, "has a space in the words of its own library", hint)


def _is_bounds(value: Any) -> bool:
    return isinstance(value, tuple) and [isinstance(n, int | float) for n in value] == [True, True]
