"""Minimum intervals between writes that cost money: 20 a second in a bucket cost as much as a GPU
on a spot machine.
"""

from __future__ import annotations

BURST = 10
"""Urgent writes that may follow each other immediately after a quiet time."""


class Spacing:
    """Keeps writes at least `seconds` apart; an equal number of urgent ones may come earlier. 0: no
    minimum.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last, self._due = seconds, float("-inf"), float("-inf")

    def early(self, now: float, *, urgent: bool) -> float:
        """Return the seconds that the next write has to wait, at most `seconds`. `now`: a time in
        seconds.
        """
        due = self._last + self._seconds
        return max(0.0, (min(due, self._due) if urgent else due) - now)

    def wrote(self, now: float) -> None:
        """Record that a write begins."""
        if now < self._last + self._seconds:
            self._due = max(self._due, now - BURST * self._seconds) + self._seconds
        self._last = now
