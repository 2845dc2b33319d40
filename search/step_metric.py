"""Time as a scheduler counts it if reports are not one a step: by a metric that each report
carries.

Reports are numbered from 1, and checkpoints, rewinds and leases use that number. With `step_metric`
decisions use the metric instead, which may begin at 0 and leave gaps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import msgspec


class StepMetric(msgspec.Struct, frozen=True, kw_only=True):
    """The metric `name` gives the step of a report; `first` is the first step, time 1."""

    name: str
    first: int = 1

    def time(self, metrics: Mapping[str, float | None], before: int) -> int:
        """Return the time of a report. If the metric is missing or decreases, it is the time
        `before` of the previous report (0 for none).
        """
        value = metrics.get(self.name)
        return before if value is None else max(before, math.floor(value) - self.first + 1)

    def value(self, time: int) -> int:
        """Return the metric's value at a time: the step as the user counts it."""
        return time + self.first - 1


class Filled(Sequence[float]):
    """Values by time, for reports that leave some times out. The value of time t, at t - 1, is that
    of the first report at or after t.

    `times` ascend. Times after the last report have the last value. The given arrays are used
    without copying.
    """

    __slots__ = ("_length", "_times", "_values")

    def __init__(self, values: Sequence[float], times: Sequence[int], length: int) -> None:
        self._values, self._times, self._length = values, times, length

    def __copy__(self) -> Filled:
        """Copy the arrays too, as their contents may change."""
        return Filled(self._values[:], self._times[:], self._length)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> float: ...

    @overload
    def __getitem__(self, place: slice) -> list[float]: ...

    def __getitem__(self, place: int | slice) -> float | list[float]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(self._length))]
        return self._values[self._report(range(1, self._length + 1)[place])]

    def stretches(self, start: int) -> Iterator[tuple[float, int]]:
        """Yield the values from place `start` on, with the places that each fills."""
        while start < self._length:
            report = self._report(start + 1)
            last = report == len(self._values) - 1
            end = self._length if last else min(self._times[report], self._length)
            yield self._values[report], end - start
            start = end

    def _report(self, time: int) -> int:
        return min(bisect_left(self._times, time), len(self._values) - 1)


def stretches(values: Sequence[float], start: int) -> Iterator[tuple[float, int]]:
    """Return the values from place `start` on, with the number of consecutive places that each
    fills. There may be too many steps between two reports to iterate over each.
    """
    if isinstance(values, Filled):
        return values.stretches(start)
    return ((value, 1) for value in values[start:])
