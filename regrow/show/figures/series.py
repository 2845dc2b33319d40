"""Data for figures: thinned curves, samples of trials, ranges without single outliers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TypeVar

from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.search.numbers import readable

T = TypeVar("T")
_GOLDEN = (math.sqrt(5) - 1) / 2

OUTCOMES = ("done", "stopped", "paused", "failed", "lost", "running", "pending")
"""States of trials in the order of legends."""


def sample(items: Sequence[T], most: int, keep: Collection[T] = ()) -> list[T]:
    """Return at most `most` items, evenly spread and in their order, plus those to `keep`."""
    if len(items) <= most:
        return list(items)
    places = {round(n * (len(items) - 1) / (most - 1)) for n in range(most)} if most > 1 else {0}
    kept = set(map(id, keep))
    return [item for place, item in enumerate(items) if place in places or id(item) in kept]


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Return at most `most` positions that draw the same line: ends, lowest and highest. NaN counts
    as 0 when comparing.
    """
    import numpy as np

    count = len(values)
    if count <= max(most, 4):
        return list(range(count))
    costs = np.nan_to_num(np.asarray(values))
    kept = {0, count - 1}
    for part in np.array_split(np.arange(1, count - 1), max(1, (most - 2) // 2)):
        kept |= {int(part[costs[part].argmin()]), int(part[costs[part].argmax()])}
    return sorted(kept)


def logarithmic(values: Sequence[float]) -> bool:
    """Return whether all are positive, and the inner 90 % over more than two decades."""
    if not values or min(values) <= 0:
        return False
    low, high = quantile(values, 0.05), quantile(values, 0.95)
    return high > 100 * low


def span(
    values: Sequence[float], mode: str, *, log: bool = False
) -> tuple[tuple[float, float] | None, int]:
    """Return a range of an axis without the outliers on the bad side, and their number; (None, 0)
    if there are none.

    An outlier is further from the worst tenth than ten times the distance between that and the best
    tenth; if more than a twentieth of all values would be outliers, none is. `log`: range and
    distances are in powers of ten.
    """
    seen = [math.log10(v) for v in values] if log else list(values)
    if len(seen) < 8:
        return None, 0
    low, high = quantile(seen, 0.1), quantile(seen, 0.9)
    reach = 10 * (high - low)
    if reach <= 0:
        return None, 0
    inside = [v for v in seen if (v >= low - reach if mode == "max" else v <= high + reach)]
    if len(inside) == len(seen) or len(inside) < 0.95 * len(seen):
        return None, 0
    margin = 0.05 * (max(inside) - min(inside))
    return (min(inside) - margin, max(inside) + margin), len(seen) - len(inside)


def quantile(values: Sequence[float], u: float) -> float:
    """Return the value at `u` of the sorted values, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(u * len(ordered)))]


def best_so_far(history: History) -> list[tuple[int, float]]:
    """Return (trial, value) where the best value improved, trials in the order of their numbers."""
    way, steps = history.objective.sign, list[tuple[int, float]]()
    for trial in history.trials:
        if trial.best is not None and (not steps or way * trial.best[0] < way * steps[-1][1]):
            steps.append((trial.number, trial.best[0]))
    return steps


def counted(history: History) -> dict[str, list[TrialRecord]]:
    """Return the trials by outcome, in the order of legends; none without a trial."""
    found = {name: [t for t in history.trials if t.state is TrialState(name)] for name in OUTCOMES}
    return {name: trials for name, trials in found.items() if trials}


def spread(number: int, width: float = 1.0) -> float:
    """Return a small offset by a trial's number, at most half of `width`, to see all points.

    Multiples of the golden ratio: any numbers in a row lie evenly, and no two lie on each other.
    """
    return (number * _GOLDEN % 1 - 0.5) * width


def short(value: object) -> str:
    """Format a parameter or metric in few characters."""
    return readable(value) if isinstance(value, float) else str(value)


def ancestry(history: History, number: int, until: int) -> list[tuple[int, int, int]]:
    """Return where weights come from, newest first: (trial, after which step, up to which)."""
    found: list[tuple[int, int, int]] = []
    while True:
        changes = [
            c
            for c in history.trials[number].changes
            if c.step < until and c.source_step is not None
        ]
        if not changes:
            return [*found, (number, 0, until)]
        last = changes[-1]
        found.append((number, last.step, until))
        assert last.source is not None
        assert last.source_step is not None
        number, until = last.source, last.source_step
