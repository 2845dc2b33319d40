"""Samplers: which configuration to try next. The registry; to add a sampler, write a file beside
this one and name it here.

A sampler's module is imported when it is used: a specification with "random" doesn't load Optuna.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import cast

from regrow.search.errors import SpecError
from regrow.search.options import Registry, build
from regrow.search.samplers.base import Sampler, Suggesting
from regrow.search.space.setting import Setting

REGISTRY = Registry(
    "search",
    "regrow.search.samplers",
    {
        "random": (
            "random_search:RandomSearch",
            "randomsampler randomsearch basicvariantgenerator adaptiveasha asyncasha asynchalving",
        ),
        "grid": ("grid:GridSearch", "gridsearch gridsampler"),
        "tpe": (
            "tpe:Tpe",
            (
                "bayes bayesian bayesianoptimization bayesopt hyperopt hyperoptsearch optunasearch"
                " tpesampler"
            ),
        ),
        "dehb": ("dehb:Dehb", ""),
        "qmc": ("qmc:Qmc", "qmcsampler sobol"),
        "cmaes": ("cmaes:CmaEs", "cma cmaessampler"),
        "bohb": ("bohb:Bohb", "tunebohb"),
        "brute_force": ("grid:BruteForce", "bruteforcesampler"),
        "nsga2": ("optuna_study:Nsga2", "nsgaiisampler"),
        "nsga3": ("optuna_study:Nsga3", "nsgaiiisampler"),
        "gp": ("optuna_study:Gp", "bayesoptsearch gpsampler botorch"),
        "mobster": ("mobster:Mobster", ""),
        "optuna": ("optuna_study:OptunaStudy", ""),
        "define_by_run": ("define_by_run:DefineByRun", ""),
    },
)
NAMES = tuple(REGISTRY.known)


def make(search: object, setting: Setting) -> Sampler:
    """Return the sampler that `search` (a name or import path, or {it: options}) specifies. Raises
    SpecError for a name, an option or a setting that it cannot use.
    """
    name, options, make_it = REGISTRY.found(search)
    if (len(setting.modes) > 1 or setting.constraints) and not getattr(make_it, "several", False):
        what = "several metrics" if len(setting.modes) > 1 else "constraints"
        problem = f"cannot take {what} into account"
        raise SpecError("search", name, problem, "write search: tpe, nsga2 or random")
    if not all(callable(getattr(make_it, method, None)) for method in ("ask", "tell")):
        hint = "write a class with ask and tell, as in regrow.testing.Sampler"
        raise SpecError("search", name, "is no sampler", hint)
    return cast("Sampler", build(make_it, options, key=f"search.{name}", setting=setting))


def check_installed(search: object) -> None:
    """Raise SpecError if a sampler's library, which reading a log does not need, is missing."""
    name, _ = REGISTRY.split(search)
    if name == "gp" and find_spec("torch") is None:
        problem = "needs PyTorch, which is not installed"
        raise SpecError("search", name, problem, "pip install 'regrow[torch]'")


def gives_budgets(search: object) -> bool:
    """Return whether a registered sampler's proposals have a budget, which its scheduler keeps."""
    return bool(getattr(REGISTRY.registered(search), "gives_budgets", False))


def suggests(search: object) -> bool:
    """Return whether a registered sampler suggests values to running trials."""
    kind = REGISTRY.registered(search)
    return kind is not None and issubclass(kind, Suggesting)


def is_external(search: object) -> bool:
    """Return whether proposals come from an external sampler, see `external.py`."""
    name, options = REGISTRY.split(search)
    return name == "define_by_run" and options.get("external") is True


def class_of(search: object) -> str:
    """Return the name of an external sampler's class."""
    _, options = REGISTRY.split(search)
    return str(options.get("sampler"))


def size(search: object, setting: Setting) -> int | None:
    """Return how many trials `search` can propose, None for any number. Raises as `make` does."""
    return getattr(make(search, setting), "size", None)
