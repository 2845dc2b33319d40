"""How long an experiment has run, over all its sessions: time between them does not count, and clocks may be behind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    """Times are seconds since the epoch."""

    created: float = 0.0
    last: float = 0.0
    """When the experiment was last heard of; 0 for an empty log."""
    cut: float = 0.0
    """When the session before this one was last heard of."""
    _opened: float = 0.0
    _before: float = 0.0
    """Seconds of all sessions before this one."""

    def open(self, t: float, *, first: bool) -> None:
        """A session begins. The clock of another machine may be behind: never before the one before it ended."""
        self._before += 0.0 if first else self.last - self._opened
        self.cut = self.last
        self._opened = self.last = max(t, self.last)

    def hear(self, t: float) -> None:
        """Something happened."""
        self.last = max(self.last, t)

    def elapsed(self, now: float | None) -> float:
        """Seconds that the experiment ran; `now` while a session is under way, else None."""
        return self._before + ((self.last if now is None else max(now, self.last)) - self._opened)
