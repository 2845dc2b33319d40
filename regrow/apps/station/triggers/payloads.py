"""Checks which payloads a flow run can have unchanged: others sent them, as plain data."""

from __future__ import annotations

from itertools import chain
from math import isfinite
from typing import Any

DEPTH = 32
"""Maximum nesting of lists and maps."""
_RESERVED = "__prefect_kind"
"""Prefect's server evaluates a map with this key, as a template or a variable's value."""
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Range of integers that Prefect's server can store."""


def acceptable(value: Any, depth: int = DEPTH) -> str | None:
    """Return why a payload (of JSON types) cannot be accepted; None if it can."""
    match value:
        case str():
            return (
                None
                if is_unicode(value)
                else "a text has half of a surrogate pair (\\ud800 to \\udfff), which is no letter"
            )
        case int() if not _LEAST <= value <= _MOST:
            return "a whole number has more than 64 bits; send it as a text"
        case float() if not isfinite(value):
            return "a number is larger than JSON's readers take; send it as a text"
        case dict() | list() if depth == 0:
            return f"lists and maps are more than {DEPTH} deep"
        case dict() if _RESERVED in value:
            return f"the key {_RESERVED!r} is Prefect's own"
        case dict() | list():
            parts = chain(value, value.values()) if isinstance(value, dict) else value
            return next((why for part in parts if (why := acceptable(part, depth - 1))), None)
    return None


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8; names of files may not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
