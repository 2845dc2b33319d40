"""Translates Ray Tune's search algorithms to our samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from regrow.integrations.tune.arguments import Arguments
from regrow.integrations.tune.hyperopt_space import is_hyperopts
from regrow.integrations.tune.private import tells_index
from regrow.integrations.tune.recorded import SEARCHERS, is_users, real
from regrow.integrations.tune.recorded import given as given_to
from regrow.search.errors import SpecError

_BY_NAME = {"random": "random", "variant_generator": "random", "optuna": "tpe", "hyperopt": "tpe"}
"""Our sampler for each searcher that is given by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searching:
    """A translated search algorithm. `space`: one that it was given instead of the Tuner;
    `defined`: a function of Optuna's trial that suggests it. `own`: a searcher that runs as it is.
    `indexed`: whether each trial gets its place among `repeats`.
    """

    search: str | dict[str, Any] = "random"
    concurrency: int | None = None
    repeats: int = 1
    indexed: bool = True
    seed: int = 0
    metric: Any = None
    mode: Any = None
    space: Mapping[str, Any] | None = None
    defined: Callable[[Any], dict[str, Any] | None] | None = None
    points: tuple[dict[str, Any], ...] = ()
    own: Any = None


def searching(algorithm: Any, say: Callable[[str], None]) -> Searching:
    """Translate a search algorithm; None: random. Raises SpecError without a counterpart."""
    whole, wrapper = algorithm, None
    concurrency, repeats, indexed = None, 1, True
    while (kind := type(algorithm).__name__) in ("ConcurrencyLimiter", "Repeater"):
        if kind == "Repeater":
            repeats, indexed = int(algorithm.repeat), tells_index(algorithm)
        else:
            concurrency = int(algorithm.max_concurrent)
        wrapper, algorithm = algorithm, algorithm.searcher
    if algorithm is None:
        return Searching(concurrency=concurrency)
    if is_users(algorithm):
        return _as_it_is(whole, algorithm, say)
    name = algorithm if isinstance(algorithm, str) else type(algorithm).__name__
    known = {place.partition(":")[2]: ours for place, ours in SEARCHERS.items()}
    search = {**known, **_BY_NAME}.get(name)
    if search is None:
        hint = f"take one of {', '.join(known)}"
        raise SpecError("search_alg", name, "has no counterpart", hint)
    given = Arguments(name, {}, {}) if isinstance(algorithm, str) else given_to(algorithm)
    if _is_native_space(given.get("space")):
        made = real(algorithm)
        if wrapper is None:
            return _as_it_is(made, made, say)
        wrapper.searcher = made
        return _as_it_is(whole, made, say)
    if name != "BasicVariantGenerator":  # which draws at random, as ours does
        say(f"search: {name} is regrow's {search}")
    seeds = [given.get(key) for key in ("seed", "random_state_seed", "random_state")]
    seed = next((int(one) for one in seeds if isinstance(one, Integral)), 0)  # NumPy's, too
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
        indexed=indexed,
        seed=seed,
        metric=given.get("metric"),
        mode=given.get("mode"),
        space=None if defined is not None else _own_space(given.get("space")),
        defined=defined,
        points=tuple(given.get("points_to_evaluate") or ()),
    )
    for line in given.unused():
        say(line)
    return found


def _as_it_is(whole: Any, base: Any, say: Callable[[str], None]) -> Searching:
    """Return the search of a searcher whose own methods suggest."""
    name = type(base).__name__
    say(
        f"search: {name} suggests in the coordinator, from a copy; what it suggests is in the log"
        " before it is used"
    )
    form = {"define_by_run": {"sampler": name, "external": True}}
    return Searching(search=form, metric=whole.metric, mode=whole.mode, own=whole)


def _own_space(space: Any) -> Mapping[str, Any] | None:
    """Return the searcher's space, of Tune's domains or bounds."""
    if not space:
        return None
    from ray import tune

    if all(map(_is_bounds, space.values())):
        return {key: tune.uniform(*bounds) for key, bounds in space.items()}
    found: Mapping[str, Any] = space
    return found


def _is_native_space(space: Any) -> bool:
    """Return whether a space is in the words of the searcher's own library."""
    from ray.tune.search import sample

    if isinstance(space, Mapping) and not is_hyperopts(space):
        plain = (sample.Domain, dict, int, float, str, bool)
        return not all(isinstance(one, plain) or _is_bounds(one) for one in space.values())
    return not (space is None or callable(space) or is_hyperopts(space))


def _is_bounds(value: Any) -> bool:
    return isinstance(value, tuple) and [isinstance(n, int | float) for n in value] == [True, True]
