"""A Ray Tune configuration with placeholders: proposed values fill them, everything else is passed
unchanged.

Used by trials (`render`) and by their results' readers; does not depend on Ray.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from regrow.search.space.foreign import multiple

MOST_PASSES = 20
"""Maximum passes over functions that need each other's values: Tune gives up after as many."""


@dataclass(frozen=True, slots=True)
class ParameterRef:
    """Placeholder for a parameter's value.

    Attributes:
        path: path of the value in the proposed configuration.
        values: values that cannot be written as JSON; the proposed value is then their index. None:
            the proposed value itself.
        step: the value is rounded to a multiple of it, if our range has no steps; None: not
            rounded.

    """

    path: tuple[str, ...]
    values: tuple[Any, ...] | None = None
    step: float | None = None


@dataclass(frozen=True, slots=True)
class ConditionalTemplate:
    """Selects one of several templates, by the index at `path` of the proposed configuration."""

    path: tuple[str, ...]
    options: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SampleFrom:
    """`tune.sample_from(function)`: computed when all other values are known."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Suggested:
    """`given`, with what a searcher suggests in place of entries of the same names."""

    given: Mapping[str, Any]


class _NotYet(Exception):
    """A function asked for a value that another function has not computed yet."""


class _Spec(dict[str, Any]):
    """The argument of `sample_from` functions: the configuration, also as `spec.config`."""

    def __getitem__(self, key: str) -> Any:
        if key not in self and key == "config":
            return self
        value = dict.__getitem__(self, key)
        if isinstance(value, SampleFrom):
            raise _NotYet(key)
        return _Spec(value) if isinstance(value, dict) else value

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the block, Python's and NumPy's global generators begin at `seed`: the user's
    functions draw from them. Their states are restored afterwards.
    """
    import numpy as np

    before, theirs = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global generator
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(theirs)  # noqa: NPY002 - the global generator


def render(
    template: Mapping[str, Any] | Suggested, proposed: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Return the trainable's configuration.

    Functions are called with the global generators at `seed`, so that each attempt of a trial gets
    the same values.
    """
    config: dict[str, Any]
    if isinstance(template, Suggested):
        config = _merged(template.given, proposed)
    else:
        config = _filled(template, proposed)
    if not _late(config):
        return config
    with seeded(seed):
        for _ in range(MOST_PASSES):
            for place, key, late in _late(config):
                with suppress(_NotYet):
                    place[key] = _called(late.function, config)
            if not _late(config):
                return config
    names = ", ".join(str(key) for _, key, _ in _late(config))
    raise ValueError(f"the functions of sample_from for {names} need each other's values")


def _called(function: Callable[..., Any], config: dict[str, Any]) -> Any:
    try:
        inspect.signature(function).bind({})
    except TypeError:
        return function()
    return function(_Spec(config))


def _filled(node: Any, proposed: Mapping[str, Any]) -> Any:
    if isinstance(node, ParameterRef):
        value = _at(proposed, node.path)
        if node.step is not None:
            return multiple(round(value / node.step), node.step)
        return value if node.values is None else node.values[value]
    if isinstance(node, ConditionalTemplate):
        return _filled(node.options[_at(proposed, node.path)], proposed)
    if isinstance(node, dict):
        return {key: _filled(value, proposed) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, proposed) for value in node]
    return node


def _merged(given: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(given)
    for key, value in other.items():
        before = found.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = _merged(before, value)  # noqa: PLW2901 - the whole of it
        found[key] = value
    return found


def _at(proposed: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = proposed
    for name in path:
        value = value[name]
    return value


def _late(node: Any) -> list[tuple[Any, Any, SampleFrom]]:
    found = []
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        if isinstance(value, SampleFrom):
            found.append((node, key, value))
        elif isinstance(value, dict | list):
            found += _late(value)
    return found
