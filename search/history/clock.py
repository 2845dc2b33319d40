"""How long an experiment has run, over all its sessions. Time between sessions does not count, and
clocks may be behind.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    """Running time of an experiment. Times are seconds since the epoch."""

    created: float = 0.0
    last: float = 0.0
    """Time of the last event, 0 for an empty log."""
    cut: float = 0.0
    """Time of the last event of the previous session."""
    _opened: float = 0.0
    _before: float = 0.0
    """Seconds of all previous sessions."""

    def open(self, t: float, *, first: bool) -> None:
        """Begin a session. Another machine's clock may be behind: a session never begins before the
        end of the previous one.
        """
        self._before += 0.0 if first else self.last - self._opened
        self.cut = self.last
        self._opened = self.last = max(t, self.last)

    def hear(self, t: float) -> None:
        """Note the time of an event."""
        self.last = max(self.last, t)

    def elapsed(self, now: float | None) -> float:
        """Return the seconds that the experiment ran. `now`: the current time if a session is
        running, else None.
        """
        return self._before + ((self.last if now is None else max(now, self.last)) - self._opened)
