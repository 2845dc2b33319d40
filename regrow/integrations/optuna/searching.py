"""Translates Optuna's samplers: class, options and seed, which the specification keeps."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from optuna import samplers
from optuna.trial import FrozenTrial

from regrow.integrations.optuna.private import NOT_THERE, options, seed
from regrow.integrations.optuna.running import logged

Constraints = Callable[[FrozenTrial], Sequence[float]]
_NOT_OPTIONS = (
    "seed",
    "constraints_func",
    "warn_independent_sampling",
    "warn_asynchronous_seeding",
    "independent_sampler",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """`form` and `seed` of the specification; `constraints` is the user's function; `cells`: all
    cells of a grid, None without one; `own`: a sampler that is no class of Optuna's with options
    that a log can hold, and answers itself; None without one.
    """

    form: dict[str, Any]
    seed: int
    constraints: Constraints | None = None
    cells: tuple[dict[str, Any], ...] | None = None
    own: samplers.BaseSampler | None = None


def search(sampler: samplers.BaseSampler, name: str) -> Search:
    """Return the search that corresponds to a sampler; if the sampler has no seed, one is derived
    from the study's `name`.
    """
    given = options(sampler)
    func = given.get("constraints_func", (None, None))[1]
    constraints = func if callable(func) else None
    found = _known(sampler, given, name)
    if found is not None:
        return replace(found, constraints=found.constraints or constraints)
    form = {"define_by_run": {"sampler": type(sampler).__name__, "external": True}}
    return Search(form=form, seed=_chance(name), constraints=constraints, own=sampler)


def _known(
    sampler: samplers.BaseSampler, given: dict[str, tuple[Any, Any]], name: str
) -> Search | None:
    """Return the search of a sampler of Optuna's with plain options; None for another one."""
    kind = type(sampler).__name__
    if type(sampler) is not getattr(samplers, kind, None):
        return None
    own = seed(sampler)
    chance = _chance(name) if own is None else own
    if kind == "PartialFixedSampler":
        return _partly_fixed(given, name)
    if kind == "GridSampler":
        space = given["search_space"][1]
        names = sorted(space)
        combined = itertools.product(*(space[name] for name in names))
        cells = tuple(dict(zip(names, cell, strict=True)) for cell in combined)
        return Search(form=_form("RandomSampler", {}), seed=chance, cells=cells)
    chosen: dict[str, Any] = {}
    for option, (default, value) in given.items():
        if option in _NOT_OPTIONS or value is NOT_THERE or value is default or value == default:
            continue
        module = getattr(value, "__module__", None) or type(value).__module__
        if default is None and module.partition(".")[0] == "optuna":
            continue  # a default object that its class creates for None
        if not _plain(value):
            return None
        chosen[option] = value
    return Search(form=_form(kind, chosen), seed=chance)


def _partly_fixed(given: dict[str, tuple[Any, Any]], name: str) -> Search | None:
    (_, fixed), (_, base) = given["fixed_params"], given["base_sampler"]
    found = search(base, name)
    if found.own is not None:
        return None
    values = {key: logged(value) for key, value in fixed.items()}
    return replace(found, form={"define_by_run": {**found.form["define_by_run"], "fixed": values}})


def _chance(name: str) -> int:
    return zlib.crc32(name.encode())


def _form(kind: str, chosen: dict[str, Any]) -> dict[str, Any]:
    return {"define_by_run": {"sampler": kind, **({"options": chosen} if chosen else {})}}


def _plain(value: Any) -> bool:
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(value)) == value)
    except (TypeError, ValueError):
        return False
