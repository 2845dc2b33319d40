"""Translates a hyperopt space (`hp.uniform`, ...) with its conditions; hyperopt does not run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regrow.integrations.tune.templates import ConditionalTemplate, ParameterRef
from regrow.search.errors import SpecError
from regrow.search.space import Choice, Domain, Float, Int, Normal
from regrow.search.space.foreign import multiple, ranged

_HINT = "write the space in Tune's words, as param_space"


def is_hyperopts(space: Any) -> bool:
    """Return whether it contains hyperopt expressions."""
    if isinstance(space, Mapping):
        return any(map(is_hyperopts, space.values()))
    return type(space).__module__.startswith("hyperopt.")


def translate(space: Any) -> tuple[dict[str, Any], Any]:
    """Return the space by labels, and the template of a configuration. Raises SpecError."""
    found: dict[str, Any] = {}
    template = _node(space, found, None)
    return found, template


def _node(node: Any, found: dict[str, Any], when: Mapping[str, Any] | None) -> Any:
    if isinstance(node, Mapping):
        return {key: _node(value, found, when) for key, value in node.items()}
    name = getattr(node, "name", None)
    if not type(node).__module__.startswith("hyperopt."):
        return node
    if name == "literal":
        return node.obj
    if name == "dict":
        return {key: _node(value, found, when) for key, value in node.named_args}
    if name == "pos_args":
        return [_node(value, found, when) for value in node.pos_args]
    if name in ("float", "int") and node.pos_args:
        hole = _node(node.pos_args[0], found, when)
        real = found[hole.path[0]] if name == "int" and isinstance(hole, ParameterRef) else None
        if isinstance(real, Float) and real.step:
            low, high, step = int(real.low), int(real.high), int(real.step)
            found[hole.path[0]] = Int(low=low, high=high, step=step, when=real.when)
        return hole
    if name == "switch":
        return _switch(node, found, when)
    if name == "hyperopt_param":
        label = node.pos_args[0].obj
        return _put(found, label, _domain(label, node.pos_args[1]), when)
    raise SpecError("search_alg", f"hyperopt's {name}", "has no counterpart", _HINT)


def _switch(node: Any, found: dict[str, Any], when: Mapping[str, Any] | None) -> Any:
    """Translate `hp.choice`: parameters of an option are active if it is chosen."""
    index, *options = node.pos_args
    label = index.pos_args[0].obj
    hole = _put(found, label, Choice(values=tuple(range(len(options)))), when)
    name = hole.path[0]
    return ConditionalTemplate(
        hole.path,
        tuple(_node(one, found, {**(when or {}), name: n}) for n, one in enumerate(options)),
    )


def _put(
    found: dict[str, Any], label: str, domain: Domain, when: Mapping[str, Any] | None
) -> ParameterRef:
    name = label.replace(".", "_")
    if name in found:
        raise SpecError("search_alg", label, "is the label of two parameters", "give each its own")
    found[name] = replace(domain, when=when)
    return ParameterRef((name,))


def _domain(label: str, node: Any) -> Domain:
    arguments = [*node.pos_args, *(argument for _, argument in node.named_args)]
    numbers = [argument.obj for argument in arguments]
    match node.name, numbers:
        case "uniform", [low, high]:
            return ranged(low, high)
        case "loguniform", [low, high]:
            try:
                low, high = math.exp(low), math.exp(high)
            except OverflowError:
                hint = f"its ends are exponents of e: hp.loguniform({label!r}, log(low), log(high))"
                given = f"{label}: hyperopt's loguniform"
                raise SpecError("search_alg", given, "ends at no number", hint) from None
            return ranged(low, high, log=True)
        case "quniform", [low, high, step]:
            low, high = (multiple(round(bound / step), step) for bound in (low, high))
            return ranged(low, high, step=step)
        case "normal", [mean, sd]:
            return Normal(mean=mean, sd=sd)
        case "randint", [*low, upper]:
            return ranged(int(low[0]) if low else 0, int(upper) - 1, whole=True)
    raise SpecError("search_alg", f"{label}: hyperopt's {node.name}", "has no counterpart", _HINT)
