"""Losses and recoveries, as they happen: who was lost where and why, who came back where, and how soon."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from regrow.search.events import Began, Ended, Opened
from regrow.search.history import Attempt, TrialRecord

KEPT = 50


@dataclass(slots=True, kw_only=True)
class Loss:
    """An attempt that failed or was lost, and the one after it. `final`: none follows."""

    t: float
    trial: int
    outcome: str
    cause: str
    node: str | None
    step: int
    message: str
    final: bool = False
    back_s: float | None = None
    """Seconds until the next attempt began, None before."""
    back_node: str | None = None
    back_step: int = 0
    """It goes on after this step."""
    again: int = 0
    """Steps to be done again."""
    revived: bool = False
    """It was final, until the user wanted the trial to be tried again."""
    also: int = 0
    """How many more trials failed for good the same way."""


@dataclass(slots=True, kw_only=True)
class Absence:
    """The driver was gone for `seconds`; `lost` are the trials that ran then, `back` those of them that run again."""

    t: float
    seconds: float
    lost: set[int] = field(default_factory=set)
    back: set[int] = field(default_factory=set)


class Incidents:
    """The latest of them, oldest first, and what they amount to."""

    def __init__(self) -> None:
        self.kept: deque[Loss | Absence] = deque(maxlen=KEPT)
        self.count = 0
        """Attempts that failed or were lost, for whatever reason."""
        self._open: dict[int, Loss] = {}
        self._waits: deque[float] = deque(maxlen=200)

    @property
    def usual_wait(self) -> float | None:
        """The median of the seconds until a trial was back, None before any was."""
        return median(self._waits) if self._waits else None

    def reopened(self, event: Opened, silent: float) -> Absence:
        """Another driver goes on, after `silent` seconds."""
        absence = Absence(t=event.t, seconds=silent)
        self.kept.append(absence)
        return absence

    def ended(self, event: Ended, trial: TrialRecord, attempt: Attempt) -> Loss | None:
        """An attempt ended; None if nothing is wrong with that."""
        if not event.cause:
            return None
        self.count += 1
        last = self.kept[-1] if self.kept else None
        if event.by == "planner" and isinstance(last, Absence):
            last.lost.add(event.trial)
            return None
        loss = Loss(
            t=event.t, trial=event.trial, outcome=event.outcome, cause=event.cause, node=attempt.where, step=trial.step,
            message=event.message, final=trial.state.final,
        )
        alike = (one for one in self.kept if isinstance(one, Loss) and one.final and one.outcome == loss.outcome)
        if loss.final and (same := next((one for one in alike if one.message == loss.message), None)) is not None:
            same.also += 1
            return loss
        self.kept.append(loss)
        if not loss.final:
            self._open[event.trial] = loss
        return loss

    def revived(self, trial: int) -> None:
        """A failed trial is tried again: its last loss was not final."""
        for incident in reversed(self.kept):
            if isinstance(incident, Loss) and incident.trial == trial:
                incident.final, incident.revived = False, True
                self._open[trial] = incident
                break

    def began(self, event: Began, attempt: Attempt, lost_steps: int) -> Loss | None:
        """An attempt began, with which `lost_steps` are to be done again; the loss that it makes good, None for none."""
        for incident in reversed(self.kept):
            if isinstance(incident, Absence):
                if event.trial in incident.lost:
                    incident.back.add(event.trial)
                break
        loss = self._open.pop(event.trial, None)
        if loss is not None:
            loss.back_s = max(0.0, event.t - loss.t)
            loss.back_node, loss.back_step, loss.again = attempt.where, event.restored, lost_steps
            if not loss.revived:  # that long the user took
                self._waits.append(loss.back_s)
        return loss
