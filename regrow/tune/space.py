"""Ray Tune's `param_space` in our words: the space, and the template that trials fill with what is proposed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.space import Choice, Constant, Domain, Float, Grid, Int, Normal
from regrow.tune.holes import Hole, Late

NOTHING = "trial"
"""The name of the parameter that is made where there is none: the number of samples says how many trials there are."""
_RESERVED = ("when", "step", "text", "constant")
"""Words that mean something else below a parameter of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """A space of ours (domains and constants by name, nested), the template to fill, and how many cells its grids have."""

    space: dict[str, Any]
    template: dict[str, Any]
    cells: int

    @property
    def searched(self) -> dict[str, Domain]:
        """Its domains that are no constants, by dotted name."""
        return {name: domain for name, domain in leaves(self.space) if not isinstance(domain, Constant)}


def translate(param_space: Mapping[str, Any], say: Callable[[str], None]) -> Translated:
    """`say` is told what cannot be taken over exactly. Raises SpecError for a domain that has no counterpart."""
    space, template = _group(param_space, (), say)
    cells = math.prod(len(domain.values) for _, domain in leaves(space) if isinstance(domain, Grid))
    if all(isinstance(domain, Constant) for _, domain in leaves(space)):
        space[NOTHING] = Choice(values=(0,))
    return Translated(space=space, template=template, cells=cells)


def leaves(space: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Domain]]:
    """The domains of a nested space, by dotted name."""
    for name, value in space.items():
        if isinstance(value, Domain):
            yield f"{prefix}{name}", value
        else:
            yield from leaves(value, f"{prefix}{name}.")


def domain_of(given: Any, path: str, say: Callable[[str], None]) -> Domain | None:
    """One of Tune's domains as ours; None for what is no domain. Raises SpecError for one that has no counterpart."""
    from ray.tune.search import sample

    if not isinstance(given, sample.Domain):
        return None
    try:
        of_type: Any = given
        sampler, step = of_type.get_sampler(), None
        if isinstance(sampler, sample.Quantized):
            inner: Any = sampler
            sampler, step = inner.get_sampler(), sampler.q
        if isinstance(given, sample.Categorical):
            return Choice(values=tuple(_plain(v) for v in given.categories))
        if isinstance(sampler, sample.Normal):
            if step:
                say(f"{path}: quantised normal numbers are not rounded to {step:g}")
            return Normal(mean=sampler.mean, sd=sampler.sd)
        log = isinstance(sampler, sample.LogUniform)
        if log and step not in (None, 1):
            say(f"{path}: a logarithmic range has no steps here, so its values are not rounded to {step:g}")
        if isinstance(given, sample.Integer):
            return _whole(given.lower, given.upper, step, log=log)
        if isinstance(given, sample.Float):
            return Float(low=given.lower, high=given.upper, log=log, step=None if log else step)
    except SpecError as error:
        raise error.within(f"param_space.{path}") from None
    problem = "is a domain that regrow does not know"
    raise SpecError(f"param_space.{path}", repr(given), problem, "use uniform, choice, randint, ...")


def _whole(lower: int, upper: int, step: int | None, *, log: bool) -> Domain:
    """Tune leaves the upper bound out, but of a range with steps."""
    high = upper if step not in (None, 1) else upper - 1
    if lower == high:
        return Choice(values=(lower,))
    return Int(low=lower, high=high, log=log, step=1 if log or step is None else int(step))


def _group(given: Mapping[Any, Any], path: tuple[str, ...], say: Callable[[str], None]) -> tuple[dict[str, Any], dict[Any, Any]]:
    space: dict[str, Any] = {}
    template: dict[Any, Any] = {}
    for key, value in given.items():
        name = _name(key, space)
        node, template[key] = _entry(value, (*path, name), say)
        if node is not None:
            space[name] = node
    return space, template


def _entry(value: Any, path: tuple[str, ...], say: Callable[[str], None]) -> tuple[Any, Any]:
    from ray.tune.search import sample

    dotted = ".".join(path)
    if isinstance(value, sample.Function):
        return None, Late(value.func)
    if isinstance(value, dict) and set(value) == {"grid_search"}:
        return _listed(Grid, value["grid_search"], path)
    if isinstance(value, sample.Categorical):
        return _listed(Choice, value.categories, path)
    if (domain := domain_of(value, dotted, say)) is not None:
        return domain, Hole(path)
    if isinstance(value, dict) and value:
        space, template = _group(value, path, say)
        return space or None, template
    if isinstance(value, list) and any(_holds_domain(one) for one in value):
        space, template = _group({f"{n}": one for n, one in enumerate(value)}, path, say)
        return space or None, list(template.values())
    return (Constant(value=_plain(value)) if _is_json(value) else None), value


def _listed(kind: type[Choice], given: Any, path: tuple[str, ...]) -> tuple[Domain, Any]:
    """A choice of values; where they are no JSON, or hold domains or the same value twice, of their indices."""
    values = [_plain(value) for value in given]
    if any(_holds_domain(value) for value in values):
        hint = "take the inner parameters out, and compute from them in the trainable"
        raise SpecError(f"param_space.{'.'.join(path)}", "a choice of domains", "has no counterpart", hint)
    if all(isinstance(value, str | bool | int | float | None) and _is_json(value) for value in values):
        try:
            return kind(values=tuple(values)), Hole(path)
        except SpecError:
            pass
    return kind(values=tuple(range(len(values)))), Hole(path, tuple(values))


def _holds_domain(value: Any) -> bool:
    from ray.tune.search import sample

    if isinstance(value, dict):
        return set(value) == {"grid_search"} or any(_holds_domain(one) for one in value.values())
    return isinstance(value, sample.Domain) or (isinstance(value, list) and any(map(_holds_domain, value)))


def _name(key: Any, taken: Mapping[str, Any]) -> str:
    """A name of ours: not empty, without dots, and none that means something else."""
    name = str(key).replace(".", "_") or "_"
    while name in taken or name in _RESERVED:
        name += "_"
    return name


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, tuple) and (not isinstance(value, dict) or all(isinstance(key, str) for key in value))
