"""Translates mutations, which Tune defines beside the space: domains, and points to begin from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from regrow.integrations.tune.space import Translated, domain_of, leaves, rounding_of
from regrow.integrations.tune.templates import ParameterRef, SampleFrom, render, seeded
from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.planning.planner import seed_for
from regrow.search.samplers.random_search import drawn
from regrow.search.space import Choice, Constant, Domain, Float, Int, Space

DRAWS = 256
"""Number of draws from a function, to find the range of its values."""


Beginning = Domain | Sequence[Any]
"""First values of a mutated parameter: drawn from a domain, or one for each trial in turn."""


def with_mutations(
    translated: Translated,
    mutations: Mapping[str, Any],
    seed: int,
    say: Callable[[str], None],
    trials: int = DRAWS,
) -> tuple[Translated, dict[str, Beginning]]:
    """Return the space with a domain for each mutated parameter, and their first values, by dotted
    name. A function of `sample_from` is called for each of `trials`, DRAWS at most.

    Raises SpecError for mutations that have no counterpart.
    """
    space, template = _copy(translated.space), _copy(translated.template)
    first: dict[str, Beginning] = {}
    for path, given in _paths(mutations):
        name = ".".join(path)
        before = _at(space, path)
        now = _domain(name, given, seed, say)
        if isinstance(before, Domain):
            now = _covering(now, before)
            first[name] = before
        elif isinstance(known := _at(template, path), SampleFrom):
            first[name] = values = _sampled(translated, path, seed, min(trials, DRAWS))
            begins = Choice(values=tuple(dict.fromkeys(values)))
            now = _covering(now, begins if isinstance(now, Choice) else _of_values(values))
        elif known is not None:
            key, hint = f"hyperparam_mutations.{name}", "give it a number or a text"
            raise SpecError(key, repr(known), "cannot begin from this value", hint)
        _put(space, path, now)
        _put(template, path, ParameterRef(path, step=rounding_of(given)))
    return replace(translated, space=space, template=template), first


def _sampled(translated: Translated, path: tuple[str, ...], seed: int, trials: int) -> list[Any]:
    """Return the values of a `sample_from` for the first trials, as they would get them."""
    whole = Space.parse(translated.space)
    found = []
    for number in range(trials):
        config = whole.nest(drawn(whole, number, seed + number, {}))
        chance = seed_for(seed, number, "trial")
        found.append(_plain(_at(render(translated.template, config, chance), path)))
    return found


def first_points(
    space: Mapping[str, Any], first: Mapping[str, Beginning], trials: int, seed: int
) -> list[dict[str, Any]]:
    """Return flat configurations to begin with, drawn from `first`, all others at random."""
    whole = Space.parse(space)
    domains = {parameter.name: parameter.domain for parameter in whole.flat}
    points = []
    for number in range(trials):
        given = {}
        for name, begins in first.items():
            if isinstance(begins, Domain):
                value = begins.quantile(uniform_draw(seed, f"tune:{number}:{name}"))
            else:
                value = begins[number % len(begins)]
            if domains[name].contains(value):
                given[name] = value
        points.append(drawn(whole, number, seed + number, given))
    return points


def _paths(
    mutations: Mapping[str, Any], path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, given in mutations.items():
        inner = (*path, str(key))
        found += _paths(given, inner) if isinstance(given, Mapping) else [(inner, given)]
    return found


def _domain(name: str, given: Any, seed: int, say: Callable[[str], None]) -> Domain:
    if (domain := domain_of(given, name)) is not None:
        return domain
    if isinstance(given, list | tuple | range):
        return Choice(values=tuple(given))
    if not callable(given):
        problem = "is no domain, list or function"
        key = f"hyperparam_mutations.{name}"
        raise SpecError(key, repr(given), problem, "write tune.uniform(0, 1)")
    with seeded(seed):  # the log stores a domain: it can store no function
        domain = _of_values([_plain(given()) for _ in range(DRAWS)])
    say(
        f"hyperparam_mutations: {name} is given by a function; {DRAWS} values of it make"
        f" {domain.to_json()}"
    )
    return domain


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _of_values(values: list[Any]) -> Domain:
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1 or not all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in distinct
    ):
        return Choice(values=tuple(distinct))
    low, high = min(distinct), max(distinct)
    middle = sorted(values)[len(values) // 2]
    # positive values over more than a factor of 20, most of them small
    log = low > 0 and math.log(high / low) > math.log(20.0) and middle < (low + high) / 4
    if all(isinstance(v, int) for v in distinct):
        return Int(low=int(low), high=int(high), log=log)
    return Float(low=low, high=high, log=log)


def _covering(now: Domain, before: Domain) -> Domain:
    """Return `now`, widened to include the values with which a trial begins."""
    begins: list[Any] = [before.value] if isinstance(before, Constant) else []
    if isinstance(before, Choice):
        begins = list(before.values)
    if isinstance(now, Choice):
        return Choice(values=(*now.values, *(value for value in begins if not now.contains(value))))
    if isinstance(now, Float | Int):
        ends = [v for v in begins if isinstance(v, int | float)]
        ends += [before.low, before.high] if isinstance(before, Float | Int) else []
        low, high = min([now.low, *ends]), max([now.high, *ends])
        if isinstance(now, Float):
            fits = (low > 0 or not now.log) and now.step is None
            return replace(now, low=float(low), high=float(high)) if fits else now
        if all(isinstance(v, int) for v in ends) and now.step == 1 and (low > 0 or not now.log):
            return replace(now, low=int(low), high=int(high))
    return now


def _copy(node: dict[Any, Any]) -> dict[Any, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in node.items()}


def _at(node: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _put(node: dict[Any, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = value


def changeable(space: Mapping[str, Any], mutations: Mapping[str, Any]) -> list[str]:
    """Return the parameters that a population changes; a choice of one value cannot change."""
    names = dict(leaves(space))
    wanted = [".".join(path) for path, _ in _paths(mutations)]
    return [name for name in wanted if name in names and names[name].cells != 1]
