"""Writes that cost money are made some time apart: in a bucket 20 a second cost as much as a GPU on a spot machine."""

from __future__ import annotations

BURST = 10
"""Writes for which somebody waits that may go at once after quiet, however soon after the one before."""


class Spacing:
    """Makes writes at least `seconds` apart; as many again may be earlier, as somebody waits. 0: no matter how close."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last, self._due = seconds, float("-inf"), float("-inf")

    def early(self, now: float, *, urgent: bool) -> float:
        """The seconds that the next write has to wait, at most `seconds`; `now`: a time in seconds."""
        due = self._last + self._seconds
        return max(0.0, (min(due, self._due) if urgent else due) - now)

    def wrote(self, now: float) -> None:
        """A write begins."""
        if now < self._last + self._seconds:
            self._due = max(self._due, now - BURST * self._seconds) + self._seconds
        self._last = now
