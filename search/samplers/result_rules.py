"""Rules about results: which of two counts, and by what value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from regrow.search.samplers.base import Result

APART: Final = 3
"""A curve is sampled from steps 1, 3, 9, ... on, and at its end."""
_RANK: Final = {"running": 0, "paused": 1, "failed": 2, "stopped": 3, "done": 4}


def supersedes(result: Result, before: Result | None) -> bool:
    """Return whether `result` is more informative about its trial than `before`.

    An end counts more than none, a real end more than a failure, a longer curve more than a shorter
    one, and everything after a retry more than everything before it. So the order in which a
    trial's results arrive makes no difference.
    """
    return before is None or _weight(result) > _weight(before)


def _weight(result: Result) -> tuple[int, int, int]:
    return result.revived, _RANK[result.status], len(result.intermediate)


def ended_value(result: Result) -> float | None:
    """Return the value by which an ended trial counts as a whole; for a stopped one the last of its
    curve.

    None if the trial runs, failed, or has no value (or NaN); also if it is paused, as its value may
    still change.
    """
    if result.status not in ("done", "stopped"):
        return None
    value = result.value
    if result.status == "stopped" and result.intermediate:
        value = max(result.intermediate)[1]
    return None if value is None or math.isnan(value) else float(value)


def sampled(curve: Iterable[tuple[int, float]], sign: float) -> list[tuple[int, float]]:
    """Return the least cost so far of a curve of values, ordered by step: at the first step from
    each of 1, 3, 9, ... on, and at the last one.
    """
    found: list[tuple[int, float]] = []
    cost, due, held = math.inf, 1, False
    for step, value in curve:
        if held:
            found.pop()
        cost, held = min(cost, sign * value), step < due
        found.append((step, cost))
        while due <= step:
            due *= APART
    return found
