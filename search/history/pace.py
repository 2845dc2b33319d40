"""How long steps and checkpoints take, as far as trials have shown it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from regrow.search.events import Row
from regrow.search.history.records import Attempt

SEEN = 64
"""The last so many durations count."""
FADES = 0.7
"""A long step counts in full at first, and by this factor less with each step after it."""


def _recent() -> deque[float]:
    return deque(maxlen=SEEN)


@dataclass(slots=True)
class Pace:
    """Folds the durations of steps and checkpoints, in seconds."""

    begins: deque[float] = field(default_factory=_recent)
    """From the decision to start an attempt to its begin; not of those that had to wait."""
    first: deque[float] = field(default_factory=_recent)
    """From the begin of an attempt to its first report."""
    steps: deque[float] = field(default_factory=_recent)
    """Between two reports of an attempt; the mean of those that came together."""
    saves: deque[float] = field(default_factory=_recent)
    """From the call of the user's code until a checkpoint is durable."""
    ran: float = 0.0
    """Seconds that ended attempts ran, each on its machine."""
    losses: int = 0
    """Attempts that ended without being able to save."""

    def began(self, attempt: Attempt) -> None:
        if attempt.t_began is not None and not attempt.waited:
            self.begins.append(attempt.t_began - attempt.t_started)

    def ended(self, attempt: Attempt) -> None:
        if attempt.t_began is None or attempt.t_ended is None:
            return
        self.ran += max(0.0, attempt.t_ended - attempt.t_began)
        self.losses += attempt.outcome == "lost"

    def reported(self, attempt: Attempt, before: float | None, rows: Sequence[Row]) -> None:
        """Take the reports of an attempt. `before`: when it reported last, None for never."""
        begin = attempt.t_began if before is None else before
        if begin is None or not rows:
            return
        seconds = max(0.0, rows[-1].t - begin) / len(rows)
        (self.first if before is None else self.steps).append(seconds)
        attempt.step_seconds = max(seconds, FADES * attempt.step_seconds)

    def saved(self, attempt: Attempt, seconds: float | None) -> None:
        """Take the duration of a checkpoint; None: not measured."""
        if seconds is None:
            return
        self.saves.append(seconds)
        attempt.save_seconds = max(seconds, FADES * attempt.save_seconds)

    @property
    def step(self) -> float | None:
        """The usual duration of a step; None before the first report."""
        found = self.steps or self.first
        return median(found) if found else None

    @property
    def begin(self) -> float:
        """The usual time until an attempt begins; 0: not seen."""
        return median(self.begins) if self.begins else 0.0

    @property
    def arrival(self) -> float | None:
        """The usual time from the begin of an attempt to its first report; None: not seen."""
        return median(self.first) if self.first else None

    @property
    def save(self) -> float | None:
        """The usual duration of a checkpoint; None: not measured."""
        return median(self.saves) if self.saves else None
