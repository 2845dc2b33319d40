"""A configuration of Ray Tune's with holes: what is proposed fills them, anything else is handed on as it was written.

Used by trials (`fill`) and by who reads their results; nothing of Ray is needed here.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_PASSES = 20
"""Over functions that need each other's values: Tune gives up after as many."""


@dataclass(frozen=True, slots=True)
class Hole:
    """The value of a parameter: at `path` of the proposed configuration; of `values`, where these cannot be written as JSON, it
    is the index.
    """

    path: tuple[str, ...]
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """One of several templates: that whose index is at `path` of the proposed configuration."""

    path: tuple[str, ...]
    options: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Late:
    """`tune.sample_from(function)`: computed when all else is known."""

    function: Callable[..., Any]


class _NotYet(Exception):
    """A function asked for a value that another one has still to give."""


class _Spec(dict[str, Any]):
    """What a function of `sample_from` is given: the configuration, by keys and by attributes, also as `spec.config`."""

    def __getitem__(self, key: str) -> Any:
        if key not in self and key == "config":
            return self
        value = dict.__getitem__(self, key)
        if isinstance(value, Late):
            raise _NotYet(key)
        return _Spec(value) if isinstance(value, dict) else value

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None


def fill(template: Mapping[str, Any], proposed: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The configuration that a trainable is given. Functions are called with Python's and NumPy's generators at `seed`, so that
    each attempt of a trial gets the same; both are as they were afterwards.
    """
    config: dict[str, Any] = _filled(template, proposed)
    if not _late(config):
        return config
    import numpy as np

    before, theirs = random.getstate(), np.random.get_state()  # noqa: NPY002 - what the user's functions draw from
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        for _ in range(MOST_PASSES):
            for place, key, late in _late(config):
                try:
                    place[key] = _called(late.function, config)
                except _NotYet:
                    continue
            if not _late(config):
                return config
    finally:
        random.setstate(before)
        np.random.set_state(theirs)  # noqa: NPY002
    names = ", ".join(str(key) for _, key, _ in _late(config))
    raise ValueError(f"the functions of sample_from for {names} need each other's values")


def _called(function: Callable[..., Any], config: dict[str, Any]) -> Any:
    try:
        inspect.signature(function).bind({})
    except TypeError:
        return function()
    return function(_Spec(config))


def _filled(node: Any, proposed: Mapping[str, Any]) -> Any:
    if isinstance(node, Hole):
        value = _at(proposed, node.path)
        return value if node.values is None else node.values[value]
    if isinstance(node, Switch):
        return _filled(node.options[_at(proposed, node.path)], proposed)
    if isinstance(node, dict):
        return {key: _filled(value, proposed) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, proposed) for value in node]
    return node


def _at(proposed: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = proposed
    for name in path:
        value = value[name]
    return value


def _late(node: Any) -> list[tuple[Any, Any, Late]]:
    found = []
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        if isinstance(value, Late):
            found.append((node, key, value))
        elif isinstance(value, dict | list):
            found += _late(value)
    return found
