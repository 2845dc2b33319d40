"""Which payloads can go to a flow run as they are. What somebody else sends is data, and stays data."""

from __future__ import annotations

from typing import Any

DEPTH = 32
"""How deep lists and maps may lie in one another."""
_RESERVED = "__prefect_kind"
"""A map with this key is no map to Prefect's server, but something to compute: a template, or a variable's value."""


def acceptable(value: Any, depth: int = DEPTH) -> str | None:
    """Why a payload (of JSON's types) cannot be taken; None: it can."""
    if not isinstance(value, dict | list):
        return None
    if depth == 0:
        return f"lists and maps are more than {DEPTH} deep"
    if isinstance(value, dict) and _RESERVED in value:
        return f"the key {_RESERVED!r} is Prefect's own"
    parts = value.values() if isinstance(value, dict) else value
    return next((why for part in parts if (why := acceptable(part, depth - 1))), None)
