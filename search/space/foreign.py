"""Translates ranges and choices in the form of other tools into our domains. Only the meaning of
their terms lives here.

W&B's `{min: 0.0, max: 0.1}`, Ray Tune's `tune.loguniform(1e-4, 1e-1)` and similar are plain YAML:
without this they would be taken for constants, and nothing would be searched. A translation is
shown in an error and never used silently, because the same terms differ between tools (a range's
upper end may be included or not). An integration, which knows whose terms they are, takes the
domain itself from `ranged`.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.space.domains import Choice, Domain, Float, Int
from regrow.search.space.scalars import is_finite

_KINDS: Mapping[str, str] = {
    word: kind
    for kind, words in {
        "uniform": "uniform float double real continuous interval",
        "quniform": "quniform discreteuniform qfloat",
        "loguniform": "loguniform loguniformvalues reciprocal log qloguniform qloguniformvalues",
        "int": "int integer intuniform uniformint randint qrandint range long",
        "logint": "logint lograndint qlograndint intlog",
        "normal": "normal gaussian randn qnormal",
        "choice": "choice choices categorical category discrete values vals ordinal enum options",
        "grid": "grid gridsearch",
        "constant": "constant const fixed value",
    }.items()
    for word in words.split()
}
"""Our keyword for the name of a distribution in other tools, without case and underscores."""
_OPEN = ("randint", "lograndint", "range")
"""Distributions that exclude their upper bound."""

NAMING = ("type", "distribution", "dist", "kind", "prior", "sampler", "space")
"""Keys whose value names a distribution."""
_LOW = ("min", "low", "lower", "minval", "minimum", "start")
_HIGH = ("max", "high", "upper", "maxval", "maximum", "end")
_BOUNDS = ("bounds", "range")
_VALUES = ("values", "vals", "choices", "categories", "options")
_STEP = ("step", "q", "precision")
_MEAN, _SD = ("mean", "mu", "loc"), ("sd", "sigma", "std", "stddev")
_LOG = ("log", "log_scale")
_REST = ("value", "val", "scale", "base", "count", "default", "default_value")
WORDS = frozenset((*NAMING, *_LOW, *_HIGH, *_BOUNDS, *_VALUES, *_STEP, *_MEAN, *_SD, *_LOG, *_REST))
"""The keys of such maps. A map with any other key is a group of parameters."""
BOUNDS = (_LOW, _HIGH)
"""Names of the lower and the upper end of a range."""
_UNDERSCORED = "int_uniform q_uniform log_uniform log_uniform_values q_log_uniform_values"
DISTRIBUTIONS = (*_KINDS, *_UNDERSCORED.split())
"""Names of distributions as they are usually written."""
_CALL = re.compile(r"\s*[A-Za-z_][\w.]*\(.*\)\s*", re.DOTALL)
_PLAIN = re.compile(r"(?!(?:true|false|yes|no|on|off|null)$)[A-Za-z_][\w./-]*", re.IGNORECASE)


def kind_of(word: object, *, near: bool = False) -> str | None:
    """Return the keyword for a distribution's name, None for none; `near`: also if misspelt."""
    known = _normal(word)
    if known not in _KINDS and near:
        known = next(iter(difflib.get_close_matches(known, _KINDS, n=1, cutoff=0.75)), known)
    return _KINDS.get(known)


def meant(value: Mapping[Any, Any], *, word: object = None) -> dict[str, Any] | None:
    """Return the domain that another tool's map describes, in its written form; None if it
    describes none.

    `word`: the distribution's name, if it is outside of the map.
    """
    given = {str(name).lower().lstrip("_"): item for name, item in value.items() if name != "when"}
    inner = [one for one in given.values() if isinstance(one, Mapping) or hasattr(one, "to_json")]
    if inner or not given or not given.keys() <= WORDS:
        return None
    named = word if word is not None else _first(given, NAMING)
    kind = kind_of(named, near=word is not None) if isinstance(named, str) else None
    if named is not None and kind is None:
        return None  # {type: adam, ...}
    values = _first(given, (*_VALUES, "value") if kind not in (None, "constant") else _VALUES)
    if isinstance(values, (list, tuple)):
        return _of_list(kind or "choice", list(values), named, given)
    if (kind == "constant" or (kind is None and len(given) == 1)) and (
        "value" in given or "val" in given
    ):
        return {"constant": given.get("value", given.get("val"))}
    if kind == "normal":
        return _of_list(kind, [_first(given, _MEAN), _first(given, _SD)], named, given)
    ends = _first(given, _BOUNDS)
    if not isinstance(ends, (list, tuple)):
        ends = _first(given, _LOW), _first(given, _HIGH)
    return _of_list(kind, list(ends), named, given)


def of_list(
    word: object, values: Sequence[Any], options: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the domain of `{word: [...]}` with `options` beside it; None if the word is unknown or
    does not take a list of this length.
    """
    kind = kind_of(word, near=True)
    return None if kind is None else _of_list(kind, list(values), word, options)


def meant_by_text(text: str) -> dict[str, Any] | None:
    """Return the domain that a call written as text describes, `tune.uniform(0, 1)` or Hydra's
    `interval(0, 1)`; None for none.
    """
    if _CALL.fullmatch(text) is None:
        return None
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return _of_call(call) if isinstance(call, ast.Call) else None


def ranged(
    low: float, high: float, *, whole: bool = False, log: bool = False, step: float | None = None
) -> Domain:
    """Return the domain of a closed range; with `step`, from its first multiple in the range to the
    last, without steps if it is logarithmic. A choice of one if there is one value.

    Raises SpecError if there is none.
    """
    if step is not None:
        within = multiples(low, high, step)
        if not within:
            hint = "give it wider bounds, or a smaller q"
            raise SpecError("bounds", [low, high], f"holds no multiple of {step:g}", hint)
        low, high = multiple(within[0], step), multiple(within[-1], step)
    if low == high:
        return Choice(values=(low,))
    if whole:
        return Int(low=int(low), high=int(high), log=log, step=int((not log and step) or 1))
    return Float(low=low, high=high, log=log, step=None if log else step)


def multiples(low: float, high: float, step: float) -> range:
    """Return which multiples of `step` lie in a closed range, its rounded bounds included."""
    first, last = low / step, high / step
    least = round(first) if math.isclose(first, round(first)) else math.ceil(first)
    most = round(last) if math.isclose(last, round(last)) else math.floor(last)
    return range(least, most + 1)


def multiple(index: int, step: float) -> int | float:
    """Return `index` times `step` in decimal arithmetic: 3 * 0.1 is 0.3."""
    return type(step)(index * Decimal(str(step)))


def flow(form: Any) -> str:
    """Return a value as it is written in YAML on one line."""
    if isinstance(form, Mapping):
        return "{" + ", ".join(f"{flow(name)}: {flow(item)}" for name, item in form.items()) + "}"
    if isinstance(form, (list, tuple)):
        return "[" + ", ".join(map(flow, form)) + "]"
    if isinstance(form, str):
        return form if _PLAIN.fullmatch(form) else json.dumps(form, ensure_ascii=False)
    return json.dumps(form, default=repr)


def _normal(word: object) -> str:
    name = str(word).rpartition(".")[2].lower().replace("_", "").replace("-", "")
    return name.removeprefix("suggest")


def _first(given: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((given[name] for name in names if name in given), None)


def _of_list(
    kind: str | None, values: list[Any], word: object, options: Mapping[str, Any]
) -> dict[str, Any] | None:
    if kind in ("choice", "grid"):
        return {kind: values}
    numbers = [_number(item) for item in values]
    step = _number(_first(options, _STEP))
    if kind == "quniform" and len(numbers) > 2 and step is None:
        step = numbers.pop()
    if len(numbers) != 2 or None in numbers:
        return None
    low, high = (number for number in numbers if number is not None)
    if kind == "normal":
        return {"normal": [low, high]}
    low, high = min(low, high), max(low, high)  # so that the suggested form is accepted
    whole = isinstance(low, int) and isinstance(high, int)
    if kind is None or (kind in ("int", "logint") and not whole):
        real = "loguniform" if kind == "logint" else "uniform"
        kind = "int" if whole and not isinstance(step, float) else real
    if options.get("log_scale", options.get("log")) is True or options.get("scale") == "log":
        kind = {"uniform": "loguniform", "int": "logint"}.get(kind, kind)
    # W&B and hyperopt give powers of e, Determined of a base
    if kind == "loguniform" and (low <= 0 or "base" in options):
        base = _number(options.get("base")) or math.e
        low, high = (float(f"{base**number:.3g}") for number in (low, high))
    if _normal(word) in _OPEN and whole:
        high -= 1
    if step is not None and kind in ("uniform", "quniform"):
        return {"quniform": [low, high, step]}
    return {kind: [low, high]} | ({"step": step} if step not in (None, 1) and kind == "int" else {})


def _number(value: Any) -> int | float | None:
    """Return a number, also one in quotes (Katib's), else None."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if is_finite(value) else None


def _of_call(call: ast.Call) -> dict[str, Any] | None:
    name = ast.unparse(call.func)
    # Hydra's tag(log, interval(1, 2))
    if _normal(name) == "tag" and call.args and isinstance(call.args[-1], ast.Call):
        inner = _of_call(call.args[-1])
        log = any(isinstance(one, ast.Name) and one.id == "log" for one in call.args)
        if log and inner is not None and "uniform" in inner:
            return {"loguniform": inner["uniform"]}
        return inner
    kind = kind_of(name)
    arguments = [_literal(one) for one in call.args]
    options = {one.arg: _literal(one.value) for one in call.keywords if one.arg}
    if kind is None:
        return None
    listed = kind in ("choice", "grid")
    if (
        len(arguments) > (1 if listed else 2)
        and isinstance(arguments[0], str)
        and (not listed or isinstance(arguments[1], list))
    ):
        del arguments[0]  # Optuna's and hyperopt's name of the parameter
    if not arguments or (listed and not isinstance(arguments[0], list) and options):
        return meant(options, word=name) if options else None
    if listed and isinstance(arguments[0], list):
        arguments = arguments[0]
    return _of_list(kind, arguments, name, options)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
