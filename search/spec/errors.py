"""Translates pydantic's validation errors into our own wording."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.secret import is_secret
from regrow.search.space.scalars import as_yaml_number
from regrow.search.spec.foreign import as_mode
from regrow.search.spec.station import CHANNELS

_FORMS = {
    "metric": "write a name, or a list of {name: ..., mode: ...}",
    "search": "write NAME or {NAME: {option: value}}",
    "schedule": "write NAME or {NAME: {option: value}}",
    "retries": "write a whole number, or unlimited",
    "constraints": "write a list of METRIC <= NUMBER",
    "points": "write a list of configurations, or of {config: ..., metrics: ...}",
    "warm_start": "write a list of names, or of {experiment: ..., given: {...}, ignore: [...]}",
    "learn_from": "write a list of names, or auto",
    "resources.workers": "write a whole number, or [least, most]",
    "resources.gpu_memory": 'write a number of bytes, or text such as "6GB"',
    "resources.memory": 'write a number of bytes, or text such as "2GiB"',
    "stall": 'write seconds, or text such as "10min", "90s" or "2h"',
    "when.every": 'write seconds, or text such as "6h", "10min" or "90s"',
    "when.settle": 'write seconds, or text such as "1min" or "30s"',
    "env": "write NAME: value, one a line",
    "serve.canary": "write 10%, or 10% for 5min",
}
"""Hints for values that may have more than one form."""
_BELOW = {"trial": "write it below stop: `stop: {trial: {hours: 2}}`"}
"""Hints for keys that belong elsewhere."""


def explain(
    error: ValidationError,
    data: dict[str, Any],
    whole: type[BaseModel],
    parts: Mapping[str, type[BaseModel]],
    forms: Mapping[str, str] = _FORMS,
) -> SpecError:
    """Return one of pydantic's errors in our words: the key as the user wrote it, the value, what
    to do.

    A misspelt key comes first, because it explains a missing one. Of the forms that a value may
    have, the best fitting one is explained. `whole`: the file's model; `parts`: the models of the
    values below its keys; `forms`: hints for values that may have more than one form.
    """
    errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    first = max(
        (e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]), key=lambda e: len(e["loc"])
    )
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return cause
    path = _path(first["loc"], data, missing=first["type"] == "missing")
    key, value = ".".join(path), first["input"]
    problem, hint = _wording(first["type"], first.get("ctx", {}), value)
    if path[0] == "env" or (path[0] == "notify" and path[-1] in CHANNELS) or is_secret(path[-1]):
        value = "***"  # it may be a secret, and messages are stored
    if path[0] == "notify" and path[-1] in CHANNELS and first["type"] == "string_pattern_mismatch":
        hint = f"write the name of the variable that has it, ${path[-1].upper()}_URL"
        return SpecError(
            key, value, "is no variable; an address is a secret, which would be stored", hint
        )
    if first["type"] == "extra_forbidden":
        part = parts.get(".".join(path[:-1])) or parts.get(path[0], whole)
        hint = _BELOW.get(key) or nearest(path[-1], part.model_fields)
        return SpecError(key, value, "unknown key", hint)
    if first["type"] == "missing":
        return SpecError(key, None, "is missing", f"add `{path[-1]}:`")
    if path[0] in parts and first["type"] in ("model_type", "model_attributes_type"):
        hint = f"its keys are: {', '.join((parts.get(key) or parts[path[0]]).model_fields)}"
    elif first["type"].endswith("_type") and not (hint == _QUOTES and path[0] in ("metric", "env")):
        near = (
            form
            for at, form in forms.items()
            if f"{key}.".startswith(f"{at}.") and len(path) <= at.count(".") + 2
        )
        hint = next(near, hint)
    return SpecError(key, value, problem, hint)


def _path(loc: tuple[int | str, ...], data: Any, *, missing: bool) -> list[str]:
    """Return the keys and positions of `loc` that `data` has; pydantic adds names of types."""
    path: list[str] = []
    for place, name in enumerate(loc):
        here = (isinstance(data, dict) and name in data) or (
            isinstance(data, (list, tuple)) and isinstance(name, int)
        )
        if here:
            data = data[name]
        if here or (missing and place == len(loc) - 1):
            path.append(str(name))
    return path or [str(loc[0])]


_QUOTES = "put quotes around it"
_MAP = "is not a map", "write {key: value}"
_LIST = "is not a list", "put brackets around it: [...]"
_WORDINGS: Mapping[str, tuple[str, str]] = {
    "invalid_key": ("is not a key", _QUOTES),
    "float_type": ("is not a number", "write a number"),
    "bool_type": ("is neither true nor false", "write true or false"),
    "finite_number": ("is not a finite number", "write a finite number"),
    "string_pattern_mismatch": (
        "is no name",
        "write 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit",
    ),
    "string_too_short": ("is empty", "write a name"),
    "too_short": ("is empty", "write at least one"),
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _MAP,
    "model_type": _MAP,
    "model_attributes_type": _MAP,
}
"""Problem and hint of errors that do not depend on the value."""


def _wording(kind: str, ctx: dict[str, Any], value: Any) -> tuple[str, str]:
    """Return problem and hint for one kind of pydantic's errors."""
    if isinstance(value, str) and kind.startswith(("int_", "float_")) and _numeric(value):
        whole = float(value).is_integer() and kind.startswith("int_")
        number = int(float(value)) if whole else as_yaml_number(value) or value
        return "is text, not a number", f"write {number}, without quotes"
    if value is None and kind.endswith("_type"):
        return "is empty", "give it a value, or leave the key out"
    if kind in _WORDINGS:
        return _WORDINGS[kind]
    match kind:
        # a validator's own problem and hint
        case "value_error" if "; " in (text := str(ctx.get("error", ""))):
            problem, _, hint = text.partition("; ")
            return problem, hint
        case "string_type":
            return "is not text", _QUOTES if isinstance(value, int | float) else "write text"
        case "int_type" | "int_from_float":
            whole = isinstance(value, float) and value.is_integer()
            return (
                "is not a whole number",
                f"write {int(value)}" if whole else "write a whole number",
            )
        case "greater_than_equal":
            return f"is below {ctx['ge']:g}", f"write {ctx['ge']:g} or more"
        case "greater_than":
            return f"is not above {ctx['gt']:g}", f"write a number above {ctx['gt']:g}"
        case "less_than_equal":
            return f"is above {ctx['le']:g}", f"write {ctx['le']:g} or less"
        case "string_too_long":
            return f"is longer than {ctx['max_length']} characters", "write a shorter name"
        case "literal_error":
            return f"is not {ctx['expected']}", nearest(
                as_mode(value) or value, re.findall(r"'(.*?)'", ctx["expected"])
            )
        case _:
            return str(
                ctx.get("error", kind.replace("_", " "))
            ), "see `regrow schema` for what may stand here"


def _numeric(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
