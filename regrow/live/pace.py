"""How quickly something goes: so many a second, by what was seen lately."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60.0
ENOUGH = 20
"""Of the moments before the window so many are kept, so that slow trials have a rate, too."""


class Pace:
    """Counts what happens; one moment a second is kept, whatever happens in it."""

    def __init__(self) -> None:
        self._moments: deque[list[float]] = deque()
        """[time, amount]."""
        self._amount = 0.0

    def add(self, t: float, amount: float = 1.0) -> None:
        """`amount` of it happened at time `t` (seconds since the epoch)."""
        if self._moments and t < self._moments[-1][0] + 1.0:  # also where a clock is behind
            self._moments[-1][1] += amount
        else:
            self._moments.append([t, amount])
        self._amount += amount
        while len(self._moments) > ENOUGH and self._moments[1][0] < t - WINDOW_SECONDS:
            self._amount -= self._moments.popleft()[1]

    def rate(self, now: float) -> float | None:
        """How much a second; None before that can be told. What happened first only marks the beginning."""
        if len(self._moments) < 2:
            return None
        first, amount = self._moments[0]
        return (self._amount - amount) / max(now - first, self._moments[-1][0] - first)

    def clear(self) -> None:
        """Begins anew."""
        self._moments.clear()
        self._amount = 0.0
