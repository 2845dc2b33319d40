"""A trial's curve: by step the numbers that decisions need, and two whole rows.

A report may hold hundreds of metrics, and every process that folds the log would keep them all.
Decisions read the objective and the metrics of constraints and further objectives: these are kept
by step, eight bytes each. Whole rows are in the log.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from regrow.search.constraints import Constraint
from regrow.search.events import Row
from regrow.search.step_metric import Filled, StepMetric

Score: TypeAlias = Literal["best", "last", "final"]
"""Which step a trial counts by: its best one, its last one, or its last one once it has ended."""

LARGEST = 2.0**62
"""Bound of a step that is counted by a metric, so that its time fits into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What an experiment reads from each row: its objective, the `others` (further metrics that
    decisions read), and the metrics of its constraints.
    """

    objective: str
    most: bool
    """Whether a greater objective is better."""
    others: tuple[str, ...] = ()
    limits: tuple[Constraint, ...] = ()
    score: Score = "best"
    step_metric: StepMetric | None = None
    """How decisions count time; None: by reports."""

    def better(self, a: float, b: float) -> bool:
        """Return whether the objective `a` is better than `b`."""
        return a > b if self.most else a < b


class Curve:
    """What a trial reported, one value a step from 1 on, without superseded steps.

    Each step is attributed to the attempt that reported it. Whole rows are kept of two steps: the
    last one, and the one that the trial counts by (see `representative`). After a rewind one of
    them may be missing until it is read again from the log.
    """

    __slots__ = (
        "_clock",
        "_columns",
        "_last",
        "_representative_row",
        "_scale",
        "best",
        "representative",
        "runs",
        "times",
        "values",
    )

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self.values = array("d")
        """The objective by step; that of step s is at s - 1."""
        self.times = array("d")
        """When each step was reported, by its node's clock."""
        self._clock = None if scale.step_metric is None else array("q")
        self._columns = tuple(array("d") for _ in scale.others)
        self.runs: list[tuple[int, int]] = []
        """(attempt, the last of its steps that count), in the order of steps."""
        self.representative = 0
        """The step that the trial counts by, 0 before the first: the last one or, if the score is
        "best", the first with the best value among those that meet the constraints, or among all if
        none does.
        """
        self.best: tuple[float, int] | None = None
        """The value of that step, and the step; None if it does not meet all constraints."""
        self._last: Row | None = None
        self._representative_row: Row | None = None

    def __len__(self) -> int:
        """Return the last step."""
        return len(self.values)

    @property
    def clock(self) -> Sequence[int]:
        """Times of the steps, as decisions count them."""
        return range(1, len(self.values) + 1) if self._clock is None else self._clock

    @property
    def time(self) -> int:
        """The time of the last step, 0 before the first."""
        return self.clock[-1] if self.values else 0

    def until(self, time: int) -> Sequence[float]:
        """Return the objective by time up to `time`, which a step has reached."""
        if self._clock is not None:
            return Filled(self.values, self._clock, time)
        return self.values if len(self.values) == time else self.values[:time]

    def reached(self, time: int) -> int:
        """Return the first step at or after a `time`, which one has reached."""
        return bisect_left(self.clock, time) + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]  # mutable, hence unhashable, as a list is; Python's way to declare it

    def _content(self) -> tuple[object, ...]:
        # compare bytes: NaN does not equal itself
        columns = [column.tobytes() for column in self._columns]
        numbers = (self.values, self.times, self._clock, columns, self.runs)
        return self._scale, numbers, self.representative, self._last, self._representative_row

    @property
    def at_end(self) -> bool:
        """Whether the curve counts only once the trial has run to its end (score "final")."""
        return self._scale.score == "final"

    def feasible(self, step: int) -> bool:
        """Return whether a step meets all constraints."""
        if not self._scale.limits:
            return True
        metrics = self.metrics(step)
        return all(limit.violation(metrics) <= 0 for limit in self._scale.limits)

    def metrics(self, step: int) -> dict[str, float | None]:
        """Return the metrics of a step that decisions read, None for missing ones."""
        if not step:
            return {}
        found: dict[str, float | None] = {self._scale.objective: self.values[step - 1]}
        for name, column in zip(self._scale.others, self._columns, strict=True):
            found[name] = None if math.isnan(value := column[step - 1]) else value
        return found

    def column(self, name: str) -> Sequence[float]:
        """Return a metric that decisions read, by step, NaN where missing. Raises KeyError."""
        if name == self._scale.objective:
            return self.values
        return dict(zip(self._scale.others, self._columns, strict=True))[name]

    def attempt_at(self, step: int) -> int:
        """Return the number of the attempt that reported a step."""
        return self.runs[bisect_left(self.runs, step, key=lambda run: run[1])][0]

    def lineage(self) -> Iterator[int]:
        """Yield for each step, in order, the attempt that reported it."""
        before = 0
        for attempt, last in self.runs:
            for _ in range(before, last):
                yield attempt
            before = last

    # ---- rows

    def row(self, step: int) -> Row | None:
        """Return the whole row of the last step, or of the one that the trial counts by. None for
        other steps, and while the row is missing after a rewind.
        """
        for row in (self._last, self._representative_row):
            if row is not None and row.step == step:
                return row
        return None

    def shown(self, step: int) -> Mapping[str, float | None]:
        """Return all metrics of a step if its row is kept, else those that decisions read."""
        row = self.row(step)
        return row.metrics if row is not None else self.metrics(step)

    @property
    def forgotten(self) -> set[int]:
        """The steps whose row is to be recalled from the log: at most the two that are kept."""
        return {
            step for step in (len(self), self.representative) if step and self.row(step) is None
        }

    def recall(self, row: Row) -> None:
        """Keep a row that was read again from the log, if it is one of the two."""
        self._last = row if row.step == len(self) else self._last
        self._representative_row = (
            row if row.step == self.representative else self._representative_row
        )

    # ---- folding

    def beyond(self, rows: Sequence[Row]) -> float | None:
        """Return the first step metric of these rows that is too large, None if none is."""
        metric = self._scale.step_metric
        if metric is None:
            return None
        values = (value for row in rows if (value := row.metrics.get(metric.name)) is not None)
        return next((value for value in values if value >= LARGEST), None)

    def extend(self, attempt: int, rows: Sequence[Row], values: Sequence[float]) -> bool:
        """Append the rows of the next steps, and their objective. Returns if `best` changed."""
        if not rows:
            return False
        before, best = len(self.values), self.best
        self.values.extend(values)
        self.times.extend([row.t for row in rows])
        for name, column in zip(self._scale.others, self._columns, strict=True):
            found = (row.metrics.get(name) for row in rows)
            column.extend([math.nan if value is None else value for value in found])
        if self._clock is not None and self._scale.step_metric is not None:
            for row in rows:
                last = self._clock[-1] if self._clock else 0
                self._clock.append(self._scale.step_metric.time(row.metrics, last))
        if self.runs and self.runs[-1][0] == attempt:
            self.runs.pop()
        self.runs.append((attempt, len(self.values)))
        self._find_representative(before, values)
        self._last = rows[-1]
        if self.representative > before:
            self._representative_row = rows[self.representative - before - 1]
        return self.best is not best

    def rewind(self, step: int) -> list[tuple[int, int]]:
        """Remove all steps after `step`. Returns (attempt, removed steps), newest first."""
        gone: list[tuple[int, int]] = []
        end = len(self.values)
        while end > step:
            attempt, _ = self.runs.pop()
            start = self.runs[-1][1] if self.runs else 0
            if start < step:
                self.runs.append((attempt, step))
                start = step
            gone.append((attempt, end - start))
            end = start
        if not gone:
            return gone
        for column in (self.values, self.times, *self._columns):
            del column[step:]
        if self._clock is not None:
            del self._clock[step:]
        kept = [
            row
            for row in (self._last, self._representative_row)
            if row is not None and row.step <= step
        ]
        self._last = self._representative_row = None
        if self.representative > step:
            self.representative, self.best = 0, None
            self._find_representative(0, self.values)
        for row in kept:
            self.recall(row)
        return gone

    def _find_representative(self, before: int, values: Iterable[float]) -> None:
        """Update which step the trial counts by, after steps with these values were added."""
        if self._scale.score != "best":
            self.representative, self.best = len(self.values), None
            if self.values and self.feasible(self.representative):
                self.best = self.values[-1], self.representative
            return
        most, limited = self._scale.most, bool(self._scale.limits)
        representative, met = self.representative, self.best is not None
        leader = self.values[representative - 1] if representative else 0.0
        for step, value in enumerate(values, start=before + 1):
            meets = not limited or self.feasible(step)
            better = value > leader if most else value < leader
            if not representative or meets > met or (meets == met and better):
                representative, leader, met = step, value, meets
        self.representative = representative
        if met and (self.best is None or self.best[1] != representative):
            self.best = leader, representative


def counting(runs: Sequence[tuple[int, int]], attempt: int, rows: Sequence[Row]) -> Sequence[Row]:
    """Return those of an attempt's rows that still count; `runs` are the curve's."""
    first = 0
    for number, last in runs:
        if number == attempt:
            if rows and first < rows[0].step and rows[-1].step <= last:
                return rows
            return [row for row in rows if first < row.step <= last]
        first = last
    return ()
