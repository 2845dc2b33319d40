"""`--set KEY=VALUE`: changes of a specification before it is checked. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.space.written import KINDS

_ONE_OF = (("search",), ("schedule",), ("budget",))
"""Paths of maps with one entry: the name of the alternative."""


def overridden(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a specification with `changes`, by dotted path: `space.lr.loguniform`.

    A name that has dots itself is found if it is there. A number is a place in a list. None removes
    a key. A domain, sampler or scheduler in place of another one replaces it. Raises SpecError for
    a path that leads through a plain value.
    """
    made = deepcopy(dict(data))
    for path, value in changes.items():
        try:
            _set(made, path.split("."), value, above=())
        except SpecError as error:
            raise SpecError(path, value, error.problem, error.hint, f"--set {path}") from None
    return made


def _set(node: Any, words: list[str], value: Any, above: tuple[str, ...]) -> None:
    """Set the value at a path below a map or list, which stands at the keys `above`."""
    key: Any
    if isinstance(node, list):
        key, rest = words[0], words[1:]
        if not key.isdigit() or int(key) >= len(node):
            problem = f"{'.'.join(above)} is a list of {len(node)}, which has no place {key}"
            raise SpecError(key, value, problem, "places count from 0; or set the whole list")
        key = int(key)
    else:
        key, rest = _key(node, words)
        if not rest and value is None:
            node.pop(key, None)
            return
        _replace_others(node, key, above)
    if not rest:
        node[key] = value
        return
    here = (*above, str(key))
    below = node[key] if isinstance(node, list) else node.get(key)
    if isinstance(below, str) and here in _ONE_OF:
        below = {below: {}}  # `schedule: asha`
    elif below is None or (above[:1] == ("space",) and not isinstance(below, dict)):
        below = {}  # a constant becomes a parameter
    elif not isinstance(below, dict | list):
        problem = f"{'.'.join(here)} is a plain value, which has no keys"
        raise SpecError(str(key), value, problem, "set it as a whole")
    node[key] = below
    _set(below, rest, value, here)


def _key(node: Mapping[str, Any], words: list[str]) -> tuple[str, list[str]]:
    """Return the longest name at the beginning of a path that the map has, else the first word."""
    for count in range(len(words), 1, -1):
        if (name := ".".join(words[:count])) in node:
            return name, words[count:]
    return words[0], words[1:]


def _replace_others(node: dict[str, Any], key: str, above: tuple[str, ...]) -> None:
    """Remove the alternatives of a key that is set: another domain, sampler or scheduler."""
    if key in node:
        return
    if above in _ONE_OF:
        node.clear()
    elif above[:1] == ("space",) and key in KINDS:
        for kind in KINDS:
            node.pop(kind, None)
