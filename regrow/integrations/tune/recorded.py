"""Records the constructor arguments of Ray Tune's searchers and schedulers as a script creates
them: documented arguments, no private names. Ray's classes are changed within `recording` only;
`RecordingModule` has subclasses of them.

A searcher's constructor itself is not called: it may need a library that is not needed here.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from types import ModuleType
from typing import Any

from regrow.integrations.tune.arguments import Arguments
from regrow.search.errors import SpecError
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
    "ray.tune.schedulers.async_hyperband:AsyncHyperBandScheduler",
    "ray.tune.schedulers.hyperband:HyperBandScheduler",
    "ray.tune.schedulers.median_stopping_rule:MedianStoppingRule",
    "ray.tune.schedulers.pbt:PopulationBasedTraining",
    "ray.tune.schedulers.pb2:PB2",
    "ray.tune.schedulers.resource_changing_scheduler:ResourceChangingScheduler",
)
SETTINGS = ("ray.tune:RunConfig",)
"""Settings of which a default is distinguished from the same value, given."""
GIVEN = "_regrow_given"
_ALL = (*SEARCHERS, *SCHEDULERS, *SETTINGS)
_KNOWN = {place.partition(":")[2] for place in _ALL}


def given(thing: object) -> Arguments:
    """Return a searcher's or scheduler's arguments with defaults; unrecorded: UserError."""
    found: dict[str, Any] | None = getattr(thing, GIVEN, None)
    if found is None:
        raise UserError(
            f"the {type(thing).__name__} is Ray Tune's own and does not keep its arguments; import"
            " it from regrow.tune instead of ray.tune, or run the script with `regrow tune`"
        )
    return Arguments.of_call(type(thing).__name__, type(thing).__init__, found)


def is_users(thing: object) -> bool:
    """Return whether a searcher or scheduler is of a class of the user's."""
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import Searcher

    kinds = Searcher, TrialScheduler
    return isinstance(thing, kinds) and not _is_known(type(thing))


def real(searcher: Any) -> Any:
    """Return the searcher that the script would have without us. Raises SpecError if it cannot be
    made, as its library is not installed.
    """
    cls: Any = type(searcher)
    cls = cls.__mro__[1] if cls.__module__ == __name__ else cls
    made = cls.__new__(cls)
    init = getattr(cls.__init__, "__wrapped__", cls.__init__)
    try:
        init(made, **getattr(searcher, GIVEN))
    except Exception as error:
        problem = f"cannot be made: {error}"
        raise SpecError("search_alg", cls.__name__, problem, "install its library") from error
    return made


def _is_known(cls: type) -> bool:
    """Return whether a class is Ray's, or one of ours in its place."""
    return cls.__module__.partition(".")[0] in ("ray", "regrow")


def storage_path(run: Any) -> str | None:
    """Return the storage path that a RunConfig was given, None for none.

    A RunConfig of Ray's own fills in its default: there a path equal to it counts as none.
    """
    own: dict[str, Any] | None = getattr(run, GIVEN, None)
    if own is not None:
        path = own.get("storage_path")
    else:
        path = None if run.storage_path == type(run)().storage_path else run.storage_path
    return str(path) if path else None


@contextmanager
def recording() -> Iterator[None]:
    """Record the arguments of Ray's own classes within the block."""
    before = [(cls, cls.__init__) for cls in _classes()]
    for cls, _ in before:
        cls.__init__ = _noting(cls)
    try:
        yield
    finally:
        for cls, init in before:
            cls.__init__ = init


class RecordingModule(ModuleType):
    """The names of `ray.tune.x`, whose searchers and schedulers record their arguments."""

    def __getattr__(self, name: str) -> Any:
        """Return a submodule of this kind, a recording class or function, else Ray's object."""
        if name.startswith("__") and name != "__all__":  # asked of each module by `inspect`
            raise AttributeError(name)
        if (inner := sys.modules.get(f"{self.__name__}.{name}")) is not None:
            return inner
        theirs = importlib.import_module(self.__name__.replace("regrow.", "ray.", 1))
        return recorded(getattr(theirs, name))


def install() -> None:
    """Make `regrow.tune.schedulers`, `regrow.tune.search` and their submodules importable."""
    places = {place.partition(":")[0] for place in (*SEARCHERS, *SCHEDULERS)}
    for theirs in places | {place.rpartition(".")[0] for place in places}:
        name = theirs.replace("ray.", "regrow.", 1)
        sys.modules[name] = module = RecordingModule(name)
        module.__path__ = []  # a package, whose submodules are imported from sys.modules


def recorded(thing: Any) -> Any:
    """Return a recording subclass of a searcher or scheduler, a recording version of a function
    that creates one by name, and anything else unchanged.
    """
    if isinstance(thing, type):
        return _subclass(thing) if _KNOWN & {base.__name__ for base in thing.__mro__} else thing
    if getattr(thing, "__name__", None) in ("create_scheduler", "create_searcher"):
        return recording()(thing)
    return thing


@cache
def _subclass(cls: Any) -> Any:
    return type(cls)(cls.__name__, (cls,), {"__init__": _noting(cls), "__doc__": cls.__doc__})


def _classes() -> Iterator[Any]:
    for place in _ALL:
        module, _, name = place.partition(":")
        with suppress(ImportError, AttributeError):  # it needs a library for its import
            yield getattr(importlib.import_module(module), name)


def _noting(cls: Any) -> Callable[..., None]:
    from ray.tune.search import Searcher

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
        if issubclass(cls, Searcher) and _is_known(type(self)):
            Searcher.__init__(self, metric=arguments.get("metric"), mode=arguments.get("mode"))
        else:
            original(self, *args, **kwargs)

    return noting
