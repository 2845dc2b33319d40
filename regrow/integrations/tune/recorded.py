"""Records the constructor arguments of Ray Tune's searchers and schedulers as a script creates
them: documented arguments, no private names.

A searcher's constructor itself is not called: it may need a library that is not needed here.
"""

from __future__ import annotations

import importlib
import inspect
from functools import wraps
from typing import Any

from regrow.tasks.errors import UserError

SEARCHERS = {
    "ray.tune.search.basic_variant:BasicVariantGenerator": "random",
    "ray.tune.search.optuna:OptunaSearch": "tpe",
    "ray.tune.search.hyperopt:HyperOptSearch": "tpe",
    "ray.tune.search.bohb:TuneBOHB": "bohb",
    "ray.tune.search.bayesopt:BayesOptSearch": "tpe",
    "ray.tune.search.ax:AxSearch": "tpe",
    "ray.tune.search.hebo:HEBOSearch": "tpe",
    "ray.tune.search.nevergrad:NevergradSearch": "cmaes",
    "ray.tune.search.zoopt:ZOOptSearch": "cmaes",
}
"""Tune's searchers, and our sampler for each."""
SCHEDULERS = (
    "async_hyperband:AsyncHyperBandScheduler",
    "hyperband:HyperBandScheduler",
    "median_stopping_rule:MedianStoppingRule",
    "pbt:PopulationBasedTraining",
    "pb2:PB2",
    "resource_changing_scheduler:ResourceChangingScheduler",
)
GIVEN = "_regrow_given"


def given(thing: object) -> dict[str, Any]:
    """Return the constructor arguments of a searcher or scheduler, including defaults. Raises
    UserError for one that was not recorded.
    """
    found: dict[str, Any] | None = getattr(thing, GIVEN, None)
    if found is None:
        raise UserError(
            f"the {type(thing).__name__} was made before regrow.tune was imported; import that"
            " first"
        )
    return found


def begin() -> None:
    """Record arguments from now on; a second call changes nothing."""
    for place in SEARCHERS:
        _note(_class(place), calls=place.endswith(":BasicVariantGenerator"))
    for place in SCHEDULERS:
        if (cls := _class(f"ray.tune.schedulers.{place}")) is not None:
            _note(cls, calls=True)


def _class(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:  # it needs a library for its import
        return None


def _note(cls: Any, *, calls: bool) -> None:
    if cls is None or hasattr(cls.__init__, GIVEN):
        return
    original = cls.__init__
    signature = inspect.signature(original)

    @wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        del arguments[next(iter(arguments))]
        more = next(
            (p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None
        )
        arguments |= arguments.pop(more, {}) if more else {}
        if not hasattr(self, GIVEN):  # else a known subclass has recorded its arguments
            setattr(self, GIVEN, arguments)
        if calls:
            original(self, *args, **kwargs)
        else:
            from ray.tune.search import Searcher

            Searcher.__init__(self, metric=arguments.get("metric"), mode=arguments.get("mode"))

    setattr(noting, GIVEN, True)
    cls.__init__ = noting
