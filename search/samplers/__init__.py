"""Samplers: which configuration to try next. The registry; to add a sampler, write a file beside
this one and name it here.

A sampler's module is imported when it is used: a specification with "random" doesn't load Optuna.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast

from regrow.search.errors import SpecError
from regrow.search.options import build, chosen, imported, is_path, load, split
from regrow.search.samplers.base import (
    Advised,
    Proposal,
    Result,
    Sampler,
    Steps,
    Suggesting,
    TrialStatus,
    Watching,
)
from regrow.search.space.setting import Setting

__all__ = [
    "REGISTRY",
    "Advised",
    "Proposal",
    "Result",
    "Sampler",
    "Steps",
    "Suggesting",
    "TrialStatus",
    "Watching",
    "gives_budgets",
    "make",
    "size",
    "suggests",
]

REGISTRY: Mapping[str, tuple[str, str]] = {
    "random": ("regrow.search.samplers.random_search", "RandomSearch"),
    "grid": ("regrow.search.samplers.grid", "GridSearch"),
    "tpe": ("regrow.search.samplers.tpe", "Tpe"),
    "dehb": ("regrow.search.samplers.dehb", "Dehb"),
    "qmc": ("regrow.search.samplers.qmc", "Qmc"),
    "cmaes": ("regrow.search.samplers.cmaes", "CmaEs"),
    "bohb": ("regrow.search.samplers.bohb", "Bohb"),
    "brute_force": ("regrow.search.samplers.brute_force", "BruteForce"),
    "nsga2": ("regrow.search.samplers.nsga", "Nsga2"),
    "nsga3": ("regrow.search.samplers.nsga", "Nsga3"),
    "gp": ("regrow.search.samplers.gp", "Gp"),
    "mobster": ("regrow.search.samplers.mobster", "Mobster"),
    "optuna": ("regrow.search.samplers.optuna_study", "OptunaStudy"),
    "define_by_run": ("regrow.search.samplers.define_by_run", "DefineByRun"),
}
NAMES = tuple(REGISTRY)
ELSEWHERE: Mapping[str, str] = {
    "tpe": (
        "bayes bayesian bayesianoptimization bayesopt hyperopt hyperoptsearch optunasearch"
        " tpesampler"
    ),
    "gp": "bayesoptsearch gpsampler botorch",
    "random": (
        "randomsampler randomsearch basicvariantgenerator adaptiveasha asyncasha asynchalving"
    ),
    "grid": "gridsearch gridsampler",
    "cmaes": "cma cmaessampler",
    "nsga2": "nsgaiisampler",
    "nsga3": "nsgaiiisampler",
    "qmc": "qmcsampler sobol",
    "brute_force": "bruteforcesampler",
    "bohb": "tunebohb",
}
"""Names in other tools, without case and underscores: for hints."""


def make(search: object, setting: Setting) -> Sampler:
    """Return the sampler that `search` (a name, or {name: options}) specifies, made for `setting`.

    A name is one of the registry, or the import path of a sampler's class. Raises SpecError for a
    name, an option or a setting that it cannot use.
    """
    name, options = split(search, key="search", known=REGISTRY, elsewhere=ELSEWHERE)
    make_it: Any = imported(name, key="search") if is_path(name) else load(*REGISTRY[name])
    if (len(setting.modes) > 1 or setting.constraints) and not getattr(make_it, "several", False):
        what = "several metrics" if len(setting.modes) > 1 else "constraints"
        raise SpecError(
            "search", name, f"cannot take {what} into account", "write search: tpe, nsga2 or random"
        )
    if not all(callable(getattr(make_it, method, None)) for method in ("ask", "tell")):
        raise SpecError(
            "search",
            name,
            "is no sampler",
            "write a class with ask and tell, as in regrow.testing.Sampler",
        )
    return cast("Sampler", build(make_it, options, key=f"search.{name}", setting=setting))


def check_installed(search: object) -> None:
    """Raise SpecError if a sampler's library is not installed. Only for new experiments: reading a
    log needs no library.
    """
    name, _ = split(search, key="search", known=REGISTRY, elsewhere=ELSEWHERE)
    if name == "gp" and find_spec("torch") is None:
        raise SpecError(
            "search", name, "needs PyTorch, which is not installed", "pip install 'regrow[torch]'"
        )


def gives_budgets(search: object) -> bool:
    """Return whether the proposals of a registered sampler come with a budget, which its scheduler
    must keep.
    """
    place = REGISTRY.get(chosen(search))
    return place is not None and bool(getattr(load(*place), "gives_budgets", False))


def suggests(search: object) -> bool:
    """Return whether a registered sampler suggests values to running trials."""
    place = REGISTRY.get(chosen(search))
    return place is not None and issubclass(load(*place), Suggesting)


def size(search: object, setting: Setting) -> int | None:
    """Return how many different trials `search` can propose, None for a sampler that never runs
    out.

    Raises SpecError as `make` does.
    """
    return getattr(make(search, setting), "size", None)
