"""What a Result says, for the samplers that learn from more than Optuna's columns: which of two counts, and its value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from regrow.search.samplers.base import Result

APART: Final = 3
"""A curve is looked at from steps 1, 3, 9, ... on, and at its end."""
_RANK: Final = {"running": 0, "paused": 1, "failed": 2, "stopped": 3, "done": 4}


def supersedes(result: Result, before: Result | None) -> bool:
    """Whether `result` says more on its trial than `before`: an end more than none, a real end more than a failure, a
    longer curve more than a shorter one, and whatever came of it after it was revived more than what was before. So the
    order in which a trial's results are told leaves no trace."""
    return before is None or _says(result) > _says(before)


def _says(result: Result) -> tuple[int, int, int]:
    return result.revived, _RANK[result.status], len(result.intermediate)


def ended_value(result: Result) -> float | None:
    """The value by which an ended trial counts as a whole: of a stopped one the last of its curve.

    None for one that runs, failed, or has no value (a NaN is none); also for a paused one, whose value may still change.
    """
    if result.status not in ("done", "stopped"):
        return None
    value = result.value
    if result.status == "stopped" and result.intermediate:
        value = max(result.intermediate)[1]
    return None if value is None or math.isnan(value) else float(value)


def looks(curve: Iterable[tuple[int, float]], sign: float) -> list[tuple[int, float]]:
    """The least cost so far of a curve of values, rising in step: at the first step from each of 1, 3, 9, ... on, and last."""
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
