"""Nested maps as one: the values by their names below each other."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any


def leaves(
    nested: Mapping[str, Any], mark: str = ".", *, whole: Container[str] = (), above: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield names and values of nested maps: {"a": {"b": 1}} has `a.b`. An empty map is a value.

    Args:
        nested: the maps.
        mark: what stands between the names of two levels.
        whole: names whose values are left as they are, also maps.
        above: what all names begin with.

    """
    for word, value in nested.items():
        name = f"{above}{word}"
        if isinstance(value, Mapping) and value and name not in whole:
            yield from leaves(value, mark, whole=whole, above=f"{name}{mark}")
        else:
            yield name, value
