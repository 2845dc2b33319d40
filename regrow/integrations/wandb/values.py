"""Extracts the numbers of a map that a program logs: Python's, NumPy's, and tensors of
one element.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from regrow.integrations.wandb.said import say
from regrow.tasks.trial.metric_values import number_of


def plain(data: Any) -> dict[str, float]:
    """Return the numbers in a map by name, those of inner maps by `outer.inner` as in W&B. Raises
    TypeError if it is not a map.
    """
    if not isinstance(data, Mapping):
        raise TypeError(
            f"wandb.log takes a map, such as {{'loss': 0.5}}, not {type(data).__name__}"
        )
    found: dict[str, float] = {}
    for name, value in _leaves(data, ""):
        number = _number(value)
        if number is not None:
            found[name] = number
        else:
            say(f"{name}: {type(value).__name__} is not recorded, only single numbers are")
    return found


def _leaves(data: Mapping[Any, Any], outer: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value


def _number(value: Any) -> float | None:
    number = number_of(value)
    return int(value) if number is not None and isinstance(value, numbers.Integral) else number
