"""What of a map that a program logs is a number: those of Python, NumPy and tensors of one element."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from regrow.tasks.wandb.said import say


def plain(data: Any) -> dict[str, float]:
    """The numbers in a map by name, those of maps in it by `outer.inner` as W&B has them. Raises TypeError for no map."""
    if not isinstance(data, Mapping):
        raise TypeError(f"wandb.log takes a map, such as {{'loss': 0.5}}, not {type(data).__name__}")
    found: dict[str, float] = {}
    for name, value in _leaves(data, ""):
        number = _number(value)
        if number is not None:
            found[name] = number
        elif value is not None:
            say(f"{name}: {type(value).__name__} is not recorded, only single numbers are")
    return found


def _leaves(data: Mapping[Any, Any], outer: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value


def _number(value: Any) -> float | None:
    if isinstance(value, numbers.Real):  # a truth value is 0 or 1 in W&B's charts, too
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    item = getattr(value, "item", None)
    if not callable(item):
        return None
    try:
        single = item()
    except (TypeError, ValueError, RuntimeError):  # several elements; PyTorch says it by a RuntimeError
        return None
    return _number(single) if isinstance(single, numbers.Real) else None
