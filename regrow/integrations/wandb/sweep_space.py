"""Translates the parameters of a W&B sweep. Pure data to data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any, TypeAlias

from regrow.search.errors import SpecError
from regrow.search.space.foreign import multiple, multiples
from regrow.search.space.scalars import is_finite

Notes: TypeAlias = list[tuple[str, str]]
"""(key, what is translated inexactly)."""
_MOST_CHOICES = 16
"""Number of values for a range with steps on a logarithmic scale, which no sampler of ours has."""
_ENDS = ("min", "max")
_READS: Mapping[str, tuple[str, ...]] = {
    "constant": ("value",),
    "categorical": ("values", "probabilities"),
    "categorical_w_probabilities": ("values", "probabilities"),
    "int_uniform": _ENDS,
    "uniform": _ENDS,
    "q_uniform": (*_ENDS, "q"),
    "log_uniform": _ENDS,
    "log_uniform_values": _ENDS,
    "inv_log_uniform": _ENDS,
    "inv_log_uniform_values": _ENDS,
    "q_log_uniform": (*_ENDS, "q"),
    "q_log_uniform_values": (*_ENDS, "q"),
    "normal": ("mu", "sigma"),
    "q_normal": ("mu", "sigma", "q"),
    "log_normal": ("mu", "sigma"),
    "q_log_normal": ("mu", "sigma", "q"),
    "beta": ("a", "b"),
    "q_beta": ("a", "b", "q"),
}
"""Keys that each distribution reads."""
_QUANTILES = 64
"""Values that stand for a distribution which no domain of ours has: the middles of as many equally
likely parts.
"""
_OPTIONAL = ("q", "mu", "sigma", "probabilities")


def known(given: Any, key: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the map at `key`, checked to have only these keys. Raises SpecError."""
    if not isinstance(given, Mapping):
        raise SpecError(key, given, "is not a map", f"its keys are: {', '.join(keys)}")
    for word in given:
        if word not in keys:
            hint = f"its keys are: {', '.join(keys)}"
            raise SpecError(f"{key}.{word}", given[word], "cannot be translated", hint)
    return given


def group(given: Any, key: str, grid: bool, notes: Notes) -> dict[str, Any]:
    """Return parameters by name, as grids for the method grid. Raises SpecError."""
    if not isinstance(given, Mapping) or not given:
        raise SpecError(key, given, "is no map of parameters", "write lr: {min: 0.001, max: 0.1}")
    return {str(name): _parameter(one, f"{key}.{name}", grid, notes) for name, one in given.items()}


def nested(space: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the space with dotted names as groups, and the path in it of each dotted name.

    One that lies within another parameter (`optimizer.lr` beside `optimizer`) cannot be in a group:
    it is called `optimizer_lr`.
    """
    found = {name: domain for name, domain in space.items() if "." not in name}
    paths: dict[str, str] = {}
    for name in [name for name in space if "." in name]:
        *outer, last = name.split(".")
        if space.keys() & {".".join(outer[: depth + 1]) for depth in range(len(outer))}:
            path = name.replace(".", "_")
            while path in found or path in space:
                path += "_"
            found[path], paths[name] = space[name], path
            continue
        place = found
        for word in outer:
            place = place.setdefault(word, {})
        place[last], paths[name] = space[name], name
    return found, paths


def cells(space: Mapping[str, Any]) -> int:
    """Return how many configurations a space of grids has."""
    return math.prod(_values(one) for one in space.values())


def _values(domain: Mapping[str, Any]) -> int:
    if isinstance(domain.get("grid"), list):
        return len(domain["grid"])
    return 1 if "constant" in domain else cells(domain)


def _parameter(given: Any, key: str, grid: bool, notes: Notes) -> Any:
    keys = (
        "parameters",
        "value",
        "values",
        "probabilities",
        "distribution",
        "min",
        "max",
        "mu",
        "sigma",
        "a",
        "b",
        "q",
    )
    given = known(given, key, keys)
    if "parameters" in given:
        known(given, key, ("parameters",))
        notes.append((key, "nested, an argument is called by its dotted name"))
        return group(given["parameters"], f"{key}.parameters", grid, notes)
    kind = str(given.get("distribution") or _default_distribution(given))
    if (reads := _READS.get(kind)) is None:
        hint = f"its distribution is one of: {', '.join(_READS)}"
        raise SpecError(key, dict(given), "cannot be translated", hint)
    known(given, key, ("distribution", *reads))
    for word in reads:
        if word not in given and word not in _OPTIONAL:
            raise SpecError(f"{key}.{word}", None, f"is missing, {kind} needs it", f"add `{word}:`")
    if kind == "constant":
        return {"constant": given["value"]}
    if kind in ("categorical", "categorical_w_probabilities"):
        return _categorical(given, key, grid, notes)
    for word in reads:
        if word in given and not _is_number(given[word]):
            hint = "write a number, 1.0e-3 with a point"
            raise SpecError(f"{key}.{word}", given[word], "is not a number", hint)
    if not given.get("q", 1) > 0:
        raise SpecError(f"{key}.q", given["q"], "is not above 0", "leave it out for 1")
    try:
        if grid:
            return {"grid": _counted(kind, given, key)}
        if kind != "normal" and ("mu" in reads or "a" in reads):
            return _quantiles(kind, given, key, notes)
        return _stepped(kind, given, key, notes) if "q" in reads else _range(kind, given)
    except OverflowError:
        hint = "write smaller numbers"
        if "log" in kind and not kind.endswith("_values"):
            hint = "they are exponents of e; log_uniform_values takes the values themselves"
        raise SpecError(key, dict(given), "leads to numbers that are too large", hint) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)


def _default_distribution(given: Mapping[str, Any]) -> str | None:
    """Return the distribution if none is named, as W&B chooses it."""
    if "values" in given:
        return "categorical"
    if "value" in given:
        return "constant"
    if "min" in given and "max" in given:
        whole = isinstance(given["min"], int) and isinstance(given["max"], int)
        return "int_uniform" if whole else "uniform"
    return "normal" if "mu" in given or "sigma" in given else None


def _categorical(given: Mapping[str, Any], key: str, grid: bool, notes: Notes) -> dict[str, Any]:
    """Return a choice of values; in a grid each is tried, whatever its probability."""
    values, shares = given["values"], given.get("probabilities")
    if not isinstance(values, list) or not values:
        raise SpecError(f"{key}.values", values, "is no list of values", "write values: [16, 32]")
    listed = isinstance(shares, list) and len(shares) == len(values)
    if shares is not None and not (listed and all(map(_is_number, shares))):
        raise SpecError(
            f"{key}.probabilities",
            shares,
            f"is no list of {len(values)} numbers, one a value",
            "leave it out",
        )
    if not shares or min(shares) == max(shares):
        return {"grid" if grid else "choice": values}
    if grid:
        notes.append((f"{key}.probabilities", "a grid tries each value as often as the others"))
        return {"grid": values}
    return {"choice": values, "probabilities": shares}


def _quantiles(kind: str, given: Mapping[str, Any], key: str, notes: Notes) -> dict[str, Any]:
    """Return a choice of a distribution's quantiles, multiples of q if it has one."""
    inner = kind.removeprefix("q_")
    if inner == "beta":
        for word in ("a", "b"):
            if not given[word] > 0:
                raise SpecError(f"{key}.{word}", given[word], "is not above 0", "write 1 or more")
        at = _beta(given["a"], given["b"])
    else:
        sigma = given.get("sigma", 1.0)
        if not sigma > 0:
            raise SpecError(f"{key}.sigma", sigma, "is not above 0", "leave it out for 1")
        normal = NormalDist(given.get("mu", 0.0), sigma).inv_cdf
        at = normal if inner == "normal" else lambda u: math.exp(normal(u))
    drawn = [at((place + 0.5) / _QUANTILES) for place in range(_QUANTILES)]
    if kind.startswith("q_"):
        q = given.get("q", 1)
        counts = Counter(multiple(round(value / q), q) for value in drawn)
    else:
        counts = Counter(float(f"{value:.6g}") for value in drawn)
    notes.append((key, f"{kind} is a choice of {len(counts)} values, as likely as they are there"))
    if len(set(counts.values())) == 1:
        return {"choice": list(counts)}
    return {"choice": list(counts), "probabilities": list(counts.values())}


def _beta(a: float, b: float) -> Callable[[float], float]:
    """Return the inverse of a beta distribution's cumulative function."""
    from scipy.stats import beta

    return lambda u: float(beta.ppf(u, a, b))


def _counted(kind: str, given: Mapping[str, Any], key: str) -> list[Any]:
    """Return all values of a finite range, for a grid."""
    if kind == "int_uniform":
        for word in _ENDS:
            if not isinstance(given[word], int):
                hint = "write a whole number, or values: [...]"
                raise SpecError(f"{key}.{word}", given[word], "is not a whole number", hint)
        return list(range(given["min"], given["max"] + 1))
    if kind == "q_uniform":
        within, q = _multiples(given, key)
        return [multiple(index, q) for index in within]
    raise SpecError(
        key, dict(given), "has no end of values, and the method is grid", "write values: [...]"
    )


def _multiples(given: Mapping[str, Any], key: str) -> tuple[range, int | float]:
    """Return which multiples of q lie within a range, and q."""
    q = given.get("q", 1)
    q = int(q) if q == int(q) else q
    within = multiples(given["min"], given["max"], q)
    if len(within) < 2:
        problem = "leaves fewer than two multiples between min and max"
        raise SpecError(f"{key}.q", given.get("q", 1), problem, "make max - min a few times q")
    return within, q


def _stepped(kind: str, given: Mapping[str, Any], key: str, notes: Notes) -> dict[str, Any]:
    """Return a range in multiples of q."""
    if kind == "q_log_uniform":  # its ends are exponents
        given = {**given, "min": math.exp(given["min"]), "max": math.exp(given["max"])}
    within, q = _multiples(given, key)
    first, last = within[0], within[-1]
    if kind == "q_uniform":
        low, high = multiple(first, q), multiple(last, q)
        if (low, high) != (given["min"], given["max"]):
            notes.append((key, f"its multiples of {q} are {low} to {high}"))
        whole = {"int": [low, high], "step": q}
        return whole if isinstance(q, int) else {"quniform": [low, high, q]}
    if last <= 0:
        hint = "write a number above 0: its logarithm is taken"
        raise SpecError(f"{key}.max", given["max"], "is not above 0", hint)
    first = first if first > 0 else 1
    ratio = (last / first) ** (1 / (_MOST_CHOICES - 1))
    near = {round(first * ratio**place) for place in range(_MOST_CHOICES)}
    values = [multiple(index, q) for index in sorted(near | {first, last})]
    multiples_of = f"a choice of {len(values)} multiples of {q}"
    notes.append((key, f"{kind} is {multiples_of}, evenly by their logarithm: {values}"))
    return {"choice": values}


def _range(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "normal":
        return {"normal": [given.get("mu", 0.0), given.get("sigma", 1.0)]}
    low, high = given["min"], given["max"]
    if kind == "log_uniform":
        low, high = math.exp(low), math.exp(high)
    if kind == "inv_log_uniform":  # log(1/x) is uniform
        low, high = math.exp(-high), math.exp(-low)
    return {{"int_uniform": "int", "uniform": "uniform"}.get(kind, "loguniform"): [low, high]}
