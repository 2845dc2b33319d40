"""Rate of events per second, measured over a recent window."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60.0
ENOUGH = 20
"""At least this many moments are kept, even if older than the window, so that slow trials have a
rate, too.
"""


class Pace:
    """Counts events; events within a second are one moment."""

    def __init__(self) -> None:
        self._moments: deque[list[float]] = deque()
        """[time, amount]."""
        self._amount = 0.0

    def add(self, t: float, amount: float = 1.0) -> None:
        """Add `amount` events at time `t` (seconds since the epoch)."""
        if self._moments and t < self._moments[-1][0] + 1.0:  # also if a clock is behind
            self._moments[-1][1] += amount
        else:
            self._moments.append([t, amount])
        self._amount += amount
        while len(self._moments) > ENOUGH and self._moments[1][0] < t - WINDOW_SECONDS:
            self._amount -= self._moments.popleft()[1]

    def rate(self, now: float) -> float | None:
        """Return the rate per second; None before it is known. The first moment only marks the
        beginning.
        """
        if len(self._moments) < 2:
            return None
        first, amount = self._moments[0]
        return (self._amount - amount) / max(now - first, self._moments[-1][0] - first)

    def clear(self) -> None:
        """Start again."""
        self._moments.clear()
        self._amount = 0.0
