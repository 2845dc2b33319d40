"""A trial's curve: of each step the numbers that decisions need, and of its rows only two.

A report may hold hundreds of metrics, and every process that folds the log would keep them all. Decisions read the objective and
what constraints and further objectives need: these are kept by step, eight bytes each. Whole rows are in the log.
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
"""Which step stands for a trial: its best one, its last one, or the last one once it has run to its end (else none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What an experiment reads off each row: its objective, `others` that decisions look at, too, and its constraints."""

    objective: str
    most: bool
    """Whether more of the objective is better."""
    others: tuple[str, ...] = ()
    limits: tuple[Constraint, ...] = ()
    score: Score = "best"
    step_metric: StepMetric | None = None
    """By what time is counted for decisions; None: by reports."""

    def better(self, a: float, b: float) -> bool:
        """Whether the objective `a` is better than `b`."""
        return a > b if self.most else a < b


class Curve:
    """What a trial reported, one value a step from 1 on, superseded ones gone.

    Each step stands with the attempt that reported it. Whole rows are kept of two steps: the last one, and the one that stands
    for the trial (see `standing`). After a rewind one of them may not be known until it is read again from the log.
    """

    __slots__ = ("_clock", "_columns", "_last", "_scale", "_stands", "best", "runs", "standing", "times", "values")

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self.values = array("d")
        """The objective by step, that of step s at s - 1."""
        self.times = array("d")
        """When each step was reported, by its node's clock."""
        self._clock = None if scale.step_metric is None else array("q")
        self._columns = tuple(array("d") for _ in scale.others)
        self.runs: list[tuple[int, int]] = []
        """(attempt, the last of its steps that count), in the order of steps."""
        self.standing = 0
        """The step that counts, 0 before the first: the last one or, where the score is "best", the first with the best value of
        those that meet the constraints, else of all."""
        self.best: tuple[float, int] | None = None
        """The value of that step, and the step; None where it does not meet all constraints."""
        self._last: Row | None = None
        self._stands: Row | None = None

    def __len__(self) -> int:
        """The last step."""
        return len(self.values)

    @property
    def clock(self) -> Sequence[int]:
        """The time of each step, as decisions count it."""
        return range(1, len(self.values) + 1) if self._clock is None else self._clock

    @property
    def time(self) -> int:
        """That of the last step; 0 before the first."""
        return self.clock[-1] if self.values else 0

    def until(self, time: int) -> Sequence[float]:
        """The objective by time up to `time`, which a step has reached; not copied where that is all there is."""
        if self._clock is not None:
            return Filled(self.values, self._clock, time)
        return self.values if len(self.values) == time else self.values[:time]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]  # it changes, as a list does; this is the way Python has it

    def _content(self) -> tuple[object, ...]:
        columns = [column.tobytes() for column in self._columns]  # NaN is no number's equal, not even its own
        return self._scale, self.values, self.times, self._clock, columns, self.runs, self.standing, self._last, self._stands

    @property
    def at_end(self) -> bool:
        """Whether what it has is the trial's only once that has run to its end."""
        return self._scale.score == "final"

    def feasible(self, step: int) -> bool:
        """Whether a step meets all constraints."""
        if not self._scale.limits:
            return True
        metrics = self.metrics(step)
        return all(limit.violation(metrics) <= 0 for limit in self._scale.limits)

    def metrics(self, step: int) -> dict[str, float | None]:
        """Of a step, the metrics that decisions look at; None for what was not reported, or is not finite. Step 0 has none."""
        if not step:
            return {}
        found: dict[str, float | None] = {self._scale.objective: self.values[step - 1]}
        for name, column in zip(self._scale.others, self._columns, strict=True):
            found[name] = None if math.isnan(value := column[step - 1]) else value
        return found

    def column(self, name: str) -> Sequence[float]:
        """A metric that decisions look at, by step; NaN where it was not reported. Raises KeyError for another one."""
        return self.values if name == self._scale.objective else dict(zip(self._scale.others, self._columns, strict=True))[name]

    def attempt_at(self, step: int) -> int:
        """Which attempt reported a step."""
        return self.runs[bisect_left(self.runs, step, key=lambda run: run[1])][0]

    def lineage(self) -> Iterator[int]:
        """Which attempt reported each step, in order."""
        before = 0
        for attempt, last in self.runs:
            for _ in range(before, last):
                yield attempt
            before = last

    # ---- rows --------------------------------------------------------------------------------------------------------

    def row(self, step: int) -> Row | None:
        """The whole row of the last step, or of the one that stands for the trial; None for others, and while it is forgotten."""
        for row in (self._last, self._stands):
            if row is not None and row.step == step:
                return row
        return None

    def shown(self, step: int) -> Mapping[str, float | None]:
        """All metrics of a step where its row is kept, else those that decisions look at. Step 0 has none."""
        row = self.row(step)
        return row.metrics if row is not None else self.metrics(step)

    @property
    def forgotten(self) -> set[int]:
        """Of the two steps of which rows are kept, those whose row is to be recalled from the log."""
        return {step for step in (len(self), self.standing) if step and self.row(step) is None}

    def recall(self, row: Row) -> None:
        """Keeps a row that was read again from the log, if it is one of the two."""
        self._last = row if row.step == len(self) else self._last
        self._stands = row if row.step == self.standing else self._stands

    # ---- folding -----------------------------------------------------------------------------------------------------

    def extend(self, attempt: int, rows: Sequence[Row], values: Sequence[float]) -> bool:
        """Takes in the rows of the steps that follow, and the objective of each; returns whether `best` is another one."""
        if not rows:
            return False
        before, best = len(self.values), self.best
        self.values.extend(values)
        self.times.extend([row.t for row in rows])
        for name, column in zip(self._scale.others, self._columns, strict=True):
            column.extend([math.nan if (value := row.metrics.get(name)) is None else value for row in rows])
        if self._clock is not None and self._scale.step_metric is not None:
            for row in rows:
                self._clock.append(self._scale.step_metric.time(row.metrics, self._clock[-1] if self._clock else 0))
        if self.runs and self.runs[-1][0] == attempt:
            self.runs.pop()
        self.runs.append((attempt, len(self.values)))
        self._stand(before, values)
        self._last = rows[-1]
        if self.standing > before:
            self._stands = rows[self.standing - before - 1]
        return self.best is not best

    def rewind(self, step: int) -> list[tuple[int, int]]:
        """Forgets all after a step; returns how many steps of which attempt that were, newest first."""
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
        kept = [row for row in (self._last, self._stands) if row is not None and row.step <= step]
        self._last = self._stands = None
        if self.standing > step:
            self.standing, self.best = 0, None
            self._stand(0, self.values)
        for row in kept:
            self.recall(row)
        return gone

    def _stand(self, before: int, values: Iterable[float]) -> None:
        """Finds out which step stands for the trial, now that there are steps after `before`, with these values."""
        if self._scale.score != "best":
            self.standing = len(self.values)
            self.best = (self.values[-1], self.standing) if self.values and self.feasible(self.standing) else None
            return
        most, limited = self._scale.most, bool(self._scale.limits)
        standing, met = self.standing, self.best is not None
        leader = self.values[standing - 1] if standing else 0.0
        for step, value in enumerate(values, start=before + 1):
            meets = not limited or self.feasible(step)
            if not standing or meets > met or (meets == met and (value > leader if most else value < leader)):
                standing, leader, met = step, value, meets
        self.standing = standing
        if met and (self.best is None or self.best[1] != standing):
            self.best = leader, standing


def counting(runs: Sequence[tuple[int, int]], attempt: int, rows: Sequence[Row]) -> Sequence[Row]:
    """Of rows that an attempt reported, those that are part of a curve with these runs."""
    first = 0
    for number, last in runs:
        if number == attempt:
            if rows and first < rows[0].step and rows[-1].step <= last:
                return rows
            return [row for row in rows if first < row.step <= last]
        first = last
    return ()
