"""What a user may want of a trial: to drop it, to keep a dropped one after all, to stop it."""

from __future__ import annotations

from typing import Literal

from regrow.search.events import Excluded, Halted
from regrow.search.history.records import TrialRecord

TrialOrder = Literal["drop", "keep", "stop"]


def as_event(trial: int, what: TrialOrder, t: float) -> Excluded | Halted:
    """Return the event that records it, at `t` (seconds since the epoch)."""
    if what == "stop":
        return Halted(t=t, trial=trial)
    return Excluded(t=t, trial=trial, excluded=what == "drop")


def is_carried_out(trial: TrialRecord, what: TrialOrder) -> bool:
    """Return whether nothing is left to record: it is so already, or a stop comes too late."""
    if what == "stop":
        attempt = trial.attempt
        return trial.state.final or (attempt is not None and attempt.verdict == "stop")
    return trial.excluded is (what == "drop")


def why_not(trial: TrialRecord, what: TrialOrder) -> str | None:
    """Return why it cannot be done, None if it can."""
    if what != "stop" and not trial.state.final:
        return f"is {trial.state.value}: only a trial that has ended can be dropped or kept"
    return None
