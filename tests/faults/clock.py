"""The time of the virtual world: it passes with what happens, so that limits of money and time are
reached at the same point in every run. No test lives here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

STEP_SECONDS = 20.0
"""What a step of the trainable takes."""
EFFECT_SECONDS = 0.1
"""What each transition takes."""
AWAY_SECONDS = 30.0
"""From the last event of an experiment until another driver begins."""


@dataclass(slots=True)
class Clock:
    """Stands in for the module `time`."""

    now: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.now

    def monotonic(self) -> float:
        """The same."""
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds


CLOCK = Clock()
"""That of all processes: one of them runs at a time."""
