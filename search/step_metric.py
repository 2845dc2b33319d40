"""Time as a scheduler counts it where reports are not one a step: by a metric that each report carries.

Reports are numbered from 1, and checkpoints, rewinds and leases go by that number. With `step_metric` decisions go by the metric
instead: it may begin at 0 and leave gaps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import overload

import msgspec


class StepMetric(msgspec.Struct, frozen=True, kw_only=True):
    """The metric `name` says at which step a report is; `first` is the number of the first step, which is time 1."""

    name: str
    first: int = 1

    def time(self, metrics: Mapping[str, float | None], before: int) -> int:
        """The time of a report. One that does not say it, or is behind, is at that of the report `before` it (0 for none)."""
        value = metrics.get(self.name)
        return before if value is None else max(before, math.floor(value) - self.first + 1)


class Filled(Sequence[float]):
    """Values by time, of reports that leave some out: that of time t, at t - 1, is what the first report since then said.

    `times` ascend. Of a time after the last report it is the last value. It looks at the arrays it is given, and copies none.
    """

    __slots__ = ("_length", "_times", "_values")

    def __init__(self, values: Sequence[float], times: Sequence[int], length: int) -> None:
        self._values, self._times, self._length = values, times, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> float: ...

    @overload
    def __getitem__(self, place: slice) -> list[float]: ...

    def __getitem__(self, place: int | slice) -> float | list[float]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(self._length))]
        time = range(1, self._length + 1)[place]
        return self._values[min(bisect_left(self._times, time), len(self._values) - 1)]
