"""Writes that cost money are made some time apart: in a bucket 20 a second cost as much as a GPU on a spot machine."""

from __future__ import annotations

BURST = 10
"""Writes that may follow each other at once after quiet: those of a small experiment wait for nothing."""


class Spacing:
    """Makes writes `seconds` apart on average; 0: no matter how close."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._due = seconds, float("-inf")

    def take(self, now: float) -> float:
        """The seconds that the next write has to wait, at most `seconds`, where `now` is a time in seconds."""
        due = max(self._due, now - BURST * self._seconds)
        self._due = due + self._seconds
        return max(0.0, due - now)
