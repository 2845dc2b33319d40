"""Translates Ray Tune's `param_space`: our space, and the template that trials fill."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from regrow.integrations.tune.templates import ParameterRef, SampleFrom
from regrow.search.errors import SpecError
from regrow.search.space import Choice, Constant, Domain, Float, Grid, Int, Normal
from regrow.search.space.foreign import ranged

NOTHING = "trial"
"""Parameter that is added to an empty space, whose trials are counted by samples."""
_RESERVED = ("when", "step", "text", "constant")
"""Names with another meaning below a parameter of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """Our space (domains and constants, nested), the template to fill, and its grids' cells."""

    space: dict[str, Any]
    template: Any
    cells: int

    @property
    def searched(self) -> dict[str, Domain]:
        """Its domains that are not constants, by dotted name."""
        return {name: one for name, one in leaves(self.space) if not isinstance(one, Constant)}


def translate(param_space: Mapping[str, Any]) -> Translated:
    """Translate a space. Raises SpecError for a domain without a counterpart."""
    space, template = _group(param_space, ())
    cells = math.prod(len(domain.values) for _, domain in leaves(space) if isinstance(domain, Grid))
    if all(isinstance(domain, Constant) for _, domain in leaves(space)):
        space[NOTHING] = Choice(values=(0,))
    return Translated(space=space, template=template, cells=cells)


def leaves(space: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Domain]]:
    """Yield the domains of a nested space, by dotted name."""
    for name, value in space.items():
        if isinstance(value, Domain):
            yield f"{prefix}{name}", value
        else:
            yield from leaves(value, f"{prefix}{name}.")


def domain_of(given: Any, path: str) -> Domain | None:
    """Translate a Tune domain; None for anything else. Raises SpecError without a counterpart."""
    from ray.tune.search import sample

    if not isinstance(given, sample.Domain):
        return None
    try:
        sampler, step = _sampling(given)
        if isinstance(given, sample.Categorical):
            return Choice(values=tuple(_plain(v) for v in given.categories))
        if isinstance(sampler, sample.Normal):
            return Normal(mean=sampler.mean, sd=sampler.sd)
        log = isinstance(sampler, sample.LogUniform)
        if isinstance(given, sample.Integer):
            step = None if step in (None, 1) else int(step)
            # Tune excludes the upper bound, except for a range with steps.
            high = given.upper - (step is None)
            return ranged(given.lower, high, whole=True, log=log, step=step)
        if isinstance(given, sample.Float):
            step = None if step is None else float(step)
            return ranged(given.lower, given.upper, log=log, step=step)
    except SpecError as error:
        raise error.within(f"param_space.{path}") from None
    problem = "is a domain that regrow does not know"
    raise SpecError(
        f"param_space.{path}", repr(given), problem, "use uniform, choice, randint, ..."
    )


def rounding_of(given: Any) -> float | None:
    """Return the multiple to which a Tune domain rounds if ours has no steps; None for none."""
    from ray.tune.search import sample

    if not isinstance(given, sample.Integer | sample.Float):
        return None
    sampler, step = _sampling(given)
    if step is None or not isinstance(sampler, sample.Normal | sample.LogUniform):
        return None
    return (int if isinstance(given, sample.Integer) else float)(step)


def _sampling(given: Any) -> tuple[Any, Any]:
    """Return the sampler of a Tune domain, and the multiple to which it rounds, None for none."""
    from ray.tune.search import sample

    sampler: Any = given.get_sampler()
    if isinstance(sampler, sample.Quantized):
        return sampler.get_sampler(), sampler.q
    return sampler, None


def _group(
    given: Mapping[Any, Any], path: tuple[str, ...]
) -> tuple[dict[str, Any], dict[Any, Any]]:
    space: dict[str, Any] = {}
    template: dict[Any, Any] = {}
    for key, value in given.items():
        name = str(key).replace(".", "_") or "_"
        while name in space or name in _RESERVED:
            name += "_"
        node, template[key] = _entry(value, (*path, name))
        if node is not None:
            space[name] = node
    return space, template


def _entry(value: Any, path: tuple[str, ...]) -> tuple[Any, Any]:
    from ray.tune.search import sample

    dotted = ".".join(path)
    if isinstance(value, sample.Function):
        return None, SampleFrom(value.func)
    if isinstance(value, dict) and set(value) == {"grid_search"}:
        return _listed(Grid, value["grid_search"], path)
    if isinstance(value, sample.Categorical):
        return _listed(Choice, value.categories, path)
    if (domain := domain_of(value, dotted)) is not None:
        return domain, ParameterRef(
            path, step=rounding_of(value) if isinstance(domain, Int | Float | Normal) else None
        )
    if isinstance(value, dict) and value:
        space, template = _group(value, path)
        return space or None, template
    if isinstance(value, list) and any(holds_domain(one) for one in value):
        space, template = _group({f"{n}": one for n, one in enumerate(value)}, path)
        return space or None, list(template.values())
    if _is_json(value):
        with suppress(SpecError):  # a number or a text that no log can hold
            return Constant(value=_plain(value)), value
    return None, value


def _listed(kind: type[Choice], given: Any, path: tuple[str, ...]) -> tuple[Domain, Any]:
    """Translate a choice of values, or of their indices. SpecError for one of domains."""
    if isinstance(given, str) or not hasattr(given, "__iter__") or not len(given):
        problem = "is no list of values, or an empty one"
        raise SpecError(f"param_space.{'.'.join(path)}", given, problem, "write [first, second]")
    values = [_plain(value) for value in given]
    if any(holds_domain(value) for value in values):
        hint = "take the inner parameters out, and compute from them in the trainable"
        raise SpecError(
            f"param_space.{'.'.join(path)}", "a choice of domains", "has no counterpart", hint
        )
    if all(isinstance(one, str | bool | int | float | None) and _is_json(one) for one in values):
        with suppress(SpecError):
            return kind(values=tuple(values)), ParameterRef(path)
    return kind(values=tuple(range(len(values)))), ParameterRef(path, tuple(values))


def holds_domain(value: Any) -> bool:
    """Return whether a domain of Tune's, or a grid, is anywhere in it."""
    from ray.tune.search import sample

    if isinstance(value, dict):
        return set(value) == {"grid_search"} or any(holds_domain(one) for one in value.values())
    return isinstance(value, sample.Domain) or (
        isinstance(value, list) and any(map(holds_domain, value))
    )


def _plain(value: Any) -> Any:
    """Convert NumPy's scalars to Python's."""
    scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if scalar else value


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, tuple) and (
        not isinstance(value, dict) or all(isinstance(key, str) for key in value)
    )
