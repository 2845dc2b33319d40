"""Checks of single values that a user wrote: a number is a number, a JSON value is JSON. Domains
are not known here.

Text that looks like a number ("1e-3" in quotes, or from a reader of YAML 1.1, which takes 1e-3 for
text) is refused: it would reach the training code as a string.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from regrow.search.errors import SpecError

_EXPONENT = re.compile(r"([-+]?)(\d*)(\.\d*)?[eE]([-+]?)(\d+)")
MOST_LEVELS = 100
"""Most levels of maps and lists in a specification; Python itself fails from some hundreds on."""
WHOLE_LIMIT = 2**53  # beyond it a double skips whole numbers, and samplers compute in doubles


def as_yaml_number(text: str) -> str | None:
    """Return the number that `text` was meant to be, in the form that every reader of YAML takes
    for one ("1e-3" -> "1.0e-3"); None if it isn't one.
    """
    match = _EXPONENT.fullmatch(text.strip())
    if match is None or not (match[2] or len(match[3] or "") > 1):
        return None
    fraction = (match[3] or ".")[1:] or "0"
    return f"{match[1]}{match[2] or '0'}.{fraction}e{match[4] or '+'}{match[5]}"


def plain(value: Any) -> Any:
    """Return `value` with Python's numbers and text instead of numpy's, also inside of lists,
    tuples and maps.

    An array becomes a list. Recognized by `dtype`, so that numpy is not imported.
    """
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def check_depth(data: Mapping[Any, Any]) -> None:
    """Raise SpecError at the key whose value has more than MOST_LEVELS of maps and lists inside of
    each other: who reads it calls itself for each level.
    """
    for key, value in data.items():
        level = [value]
        for _ in range(MOST_LEVELS):
            level = [inner for one in level for inner in _inside(one)]
            if not level:
                break
        else:
            problem = f"has more than {MOST_LEVELS} maps and lists inside of each other"
            names = [*value] if isinstance(value, Mapping) else type(value).__name__
            raise SpecError(str(key), names, problem, "make it flatter")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def is_finite(value: float) -> bool:
    """Return whether a float can hold a number, which may be an int of any size."""
    return abs(value) <= sys.float_info.max


def check_number(key: str, written: Any, value: Any) -> float:
    """Return `value` as a finite float. `written` is shown in the message. Raises SpecError."""
    value = plain(value)
    if isinstance(value, bool):
        problem = f"{str(value).lower()} is not a number"
        raise SpecError(key, written, problem, "write 0 or 1 if that is meant")
    if isinstance(value, str):
        hint = f"write {as_yaml_number(value) or 'it as a number'}, without quotes"
        raise SpecError(key, written, f'"{value}" is text, not a number', hint)
    if not isinstance(value, (int, float)):
        raise SpecError(key, written, f"{value!r} is not a number", "write a plain int or float")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpecError(key, written, f"{number} is not a finite number", "write finite numbers")
    return number


def check_whole(key: str, written: Any, value: Any) -> int:
    """Return `value` as an int in +-2**53; `written` is for the message. Raises SpecError."""
    value = plain(value)
    if isinstance(value, float) and math.isfinite(value):
        hint = "use uniform or quniform for real numbers"
        if value.is_integer():
            hint = f"write {int(value)}"
        raise SpecError(key, written, f"{value} is not a whole number", hint)
    check_number(key, written, value)
    if abs(value) > WHOLE_LIMIT:
        hint = "use smaller bounds, or logarithms of them"
        raise SpecError(key, written, f"{value} is beyond 2**53", hint)
    return int(value)


def check_letters(key: str, value: Any) -> None:
    """Raise SpecError for text, at any depth, with half of a surrogate pair: not storable."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            problem = "has half of a surrogate pair, which is no letter"
            hint = "write the whole one, and bytes as base64"
            raise SpecError(key, value, problem, hint) from None
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            check_letters(key, name)
            check_letters(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            check_letters(key, inner)


def check_json(key: str, value: Any) -> Any:
    """Return a copy of `value` if it is JSON: None, bool, finite number, text, or lists (tuples)
    and maps of these; numpy's scalars count as Python's. Raises SpecError.
    """
    value = plain(value)
    check_letters(key, value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)) and type(value) in (int, float):
        if not is_finite(value):
            problem = "is not a finite number: JSON has none such"
            if isinstance(value, int):
                problem = "is larger than any number that programs compute with"
            raise SpecError(key, value, problem, "use null or a text")
        return value
    if isinstance(value, (list, tuple)):
        return [check_json(key, item) for item in value]
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise SpecError(key, name, "a map's key must be text", "put quotes around it")
        return {name: check_json(key, item) for name, item in value.items()}
    problem = f"a {type(value).__name__} is not a JSON value, so it can't be stored in the log"
    hint = "give a name or a number and look the object up in the training code"
    raise SpecError(key, value, problem, hint)
