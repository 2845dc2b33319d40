"""Samplers: which configuration to try next. The registry; to add one, write a file beside this and name it
here.

The modules are imported when their sampler is asked for: a spec that says "random" doesn't load Optuna.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from regrow.search.errors import SpecError
from regrow.search.options import build, nearest, split
from regrow.search.samplers.base import Proposal, Result, Sampler, Status
from regrow.search.space import Mode, Space

__all__ = ["Proposal", "Result", "Sampler", "Status", "make", "size"]

_SAMPLERS: Mapping[str, tuple[str, str]] = {
    "random": ("regrow.search.samplers.random_search", "RandomSearch"),
    "grid": ("regrow.search.samplers.grid", "GridSearch"),
    "tpe": ("regrow.search.samplers.tpe", "Tpe"),
}


def make(search: object, space: Space, mode: Mode) -> Sampler:
    """The sampler that `search` (a name, or {name: options}) asks for, for `space`.

    Its options are the keyword-only parameters of its class. Raises SpecError for a name, an option or a
    space that it cannot use.
    """
    if mode not in ("min", "max"):
        raise SpecError("mode", mode, "is neither min nor max", nearest(mode, ("min", "max")))
    name, options = split(search, key="search", known=_SAMPLERS)
    module, sampler = _SAMPLERS[name]
    make_it: Any = getattr(importlib.import_module(module), sampler)
    return cast("Sampler", build(make_it, options, key=f"search.{name}", space=space, mode=mode))


def size(search: object, space: Space) -> int | None:
    """How many different trials `search` has to offer; None for a sampler that never runs out.

    Raises SpecError as `make` does.
    """
    sampler = make(search, space, "min")
    return getattr(sampler, "size", None)
