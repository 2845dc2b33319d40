"""What figures are drawn from: curves thinned out, samples of trials, ranges that one outlier does not spoil."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState

T = TypeVar("T")

OUTCOMES = ("done", "stopped", "paused", "failed", "lost", "running", "pending")
"""States of trials in the order of legends."""


def outcome(trial: TrialRecord) -> str:
    """The state of a trial as figures name it."""
    return trial.state.value


def sign(history: History) -> float:
    """What the objective is multiplied with so that less is better."""
    return history.objective.sign


def ranked(history: History) -> list[TrialRecord]:
    """The trials that have a best value, best first."""
    way = sign(history)
    return sorted((t for t in history.trials if t.best is not None), key=lambda t: (way * t.best[0], t.number) if t.best else ())


def sample(items: Sequence[T], most: int, keep: Collection[T] = ()) -> list[T]:
    """At most `most` of the items, evenly spread and in their order; those to `keep` come on top of these."""
    if len(items) <= most:
        return list(items)
    places = {round(n * (len(items) - 1) / (most - 1)) for n in range(most)} if most > 1 else {0}
    kept = set(map(id, keep))
    return [item for place, item in enumerate(items) if place in places or id(item) in kept]


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Positions of at most `most` values from which a line looks the same: the ends, and each bucket's lowest and highest."""
    line = Line(len(values), most)
    for value in values:
        line.add(value)
    return [place for place, _ in line.points]


class Line:
    """A line of `count` points that come one by one, of which it keeps what `thinned` does; None counts as 0 there."""

    def __init__(self, count: int, most: int) -> None:
        self.points: list[tuple[int, float | None]] = []
        """(position, value) of those that are kept, as far as they are known."""
        self._count = count
        self._buckets = max(1, (most - 2) // 2) if count > max(most, 4) else 0
        self._bucket = 0
        self._came = 0
        self._low: tuple[int, float | None] | None = None
        self._high: tuple[int, float | None] | None = None

    def add(self, value: float | None) -> None:
        """The next point."""
        place, self._came = self._came, self._came + 1
        if not self._buckets or place in (0, self._count - 1):
            self.points.append((place, value))
            return
        if self._low is None or (value or 0.0) < (self._low[1] or 0.0):
            self._low = place, value
        if self._high is None or (value or 0.0) > (self._high[1] or 0.0):
            self._high = place, value
        if place + 1 == 1 + (self._bucket + 1) * (self._count - 2) // self._buckets:  # the last one of its bucket
            self.points += sorted({self._low, self._high})
            self._bucket, self._low, self._high = self._bucket + 1, None, None


def logarithmic(values: Sequence[float]) -> bool:
    """Whether an axis is easier to read in its logarithm: all positive, the inner 90 % over more than two decades."""
    if not values or min(values) <= 0:
        return False
    low, high = quantile(values, 0.05), quantile(values, 0.95)
    return high > 100 * low


def span(values: Sequence[float], mode: str, *, log: bool = False) -> tuple[tuple[float, float] | None, int]:
    """A range of an axis that leaves out outliers on the bad side, and how many these are; None, 0 where there are none.

    An outlier is further from the worst tenth than ten times the distance between that and the best tenth; where they are more
    than a twentieth of all, they are none. `log`: the range is in powers of ten, and so are the distances.
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
    """The value at `u` of the sorted values, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(u * len(ordered)))]


def best_so_far(history: History) -> list[tuple[int, float]]:
    """(trial, value) where the best value improved, trials in the order of their numbers."""
    way, steps = sign(history), list[tuple[int, float]]()
    for trial in history.trials:
        if trial.best is not None and (not steps or way * trial.best[0] < way * steps[-1][1]):
            steps.append((trial.number, trial.best[0]))
    return steps


def counted(history: History) -> dict[str, list[TrialRecord]]:
    """The trials by outcome, in the order of legends; outcomes that no trial has are left out."""
    found = {name: [t for t in history.trials if t.state is TrialState(name)] for name in OUTCOMES}
    return {name: trials for name, trials in found.items() if trials}


def short(value: object) -> str:
    """A parameter or metric in few characters."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings(history: History, trial: TrialRecord) -> dict[str, Any]:
    """The flat configuration with which a trial reached its best value, else the one that it has now."""
    if trial.changes and trial.best is not None:
        return history.path(trial.number, trial.best[1])[-1]
    return trial.config


def ancestry(history: History, number: int, until: int) -> list[tuple[int, int, int]]:
    """Where a trial's weights at step `until` come from, newest first: (trial, after which step, up to which step)."""
    found: list[tuple[int, int, int]] = []
    while True:
        changes = [c for c in history.trials[number].changes if c.step < until and c.source_step is not None]
        if not changes:
            return [*found, (number, 0, until)]
        last = changes[-1]
        found.append((number, last.step, until))
        assert last.source is not None
        assert last.source_step is not None
        number, until = last.source, last.source_step
