"""Losses and recoveries: which trial was lost where and why, where it continued, and how soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from regrow.search.events import Began, Ended, Opened, Started
from regrow.search.history import Attempt, TrialRecord
from regrow.search.numbers import readable

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
    """The step after which the next attempt continues."""
    again: int = 0
    """Steps to be repeated."""
    revived: bool = False
    """Whether it was final until the user retried the trial."""
    changed: str = ""
    """What the next attempt has instead, such as "batch_size 32"; empty for nothing."""
    also: int = 0
    """How many more trials failed permanently with the same message."""

    def like(self, other: Loss) -> bool:
        """Return whether both have one outcome and message."""
        return (self.outcome, self.message) == (other.outcome, other.message)


@dataclass(slots=True, kw_only=True)
class DriverAbsence:
    """Some `seconds` without a driver. `lost`: trials that ran; `back`: those that run again."""

    t: float
    seconds: float
    lost: set[int] = field(default_factory=set)
    back: set[int] = field(default_factory=set)


class Incidents:
    """The latest incidents, oldest first, and their totals."""

    def __init__(self) -> None:
        self.kept: deque[Loss | DriverAbsence] = deque(maxlen=KEPT)
        self.count = 0
        """Number of attempts that failed or were lost, for any reason."""
        self._open: dict[int, Loss] = {}
        self._waits: deque[float] = deque(maxlen=200)

    @property
    def usual_wait(self) -> float | None:
        """Median seconds until a lost trial continued, None before the first."""
        return median(self._waits) if self._waits else None

    def reopened(self, event: Opened, silent: float) -> DriverAbsence:
        """Note that another driver continues, after `silent` seconds."""
        absence = DriverAbsence(t=event.t, seconds=silent)
        self.kept.append(absence)
        return absence

    def ended(self, event: Ended, trial: TrialRecord, attempt: Attempt) -> Loss | None:
        """Note the end of an attempt; return the loss, None if it ended normally."""
        if not event.cause:
            return None
        self.count += 1
        last = self.kept[-1] if self.kept else None
        if event.by == "planner" and isinstance(last, DriverAbsence):
            last.lost.add(event.trial)
            return None
        loss = Loss(
            t=event.t,
            trial=event.trial,
            outcome=event.outcome,
            cause=event.cause,
            node=attempt.where,
            step=trial.step,
            message=attempt.message,
            final=trial.state.final,
        )
        if loss.final:
            for one in self.kept:
                if isinstance(one, Loss) and one.final and one.like(loss):
                    one.also += 1
                    return loss
        self.kept.append(loss)
        if not loss.final:
            self._open[event.trial] = loss
        return loss

    def revived(self, trial: int) -> None:
        """Note that a failed trial is retried: its last loss was not final."""
        for incident in reversed(self.kept):
            if isinstance(incident, Loss) and incident.trial == trial:
                incident.final, incident.revived = False, True
                self._open[trial] = incident
                break

    def changed(self, event: Started, names: Iterable[str]) -> None:
        """Note the parameters `names` with which a trial continues."""
        config, loss = event.config or {}, self._open.get(event.trial)
        if loss is not None:
            given = [f"{name} {readable(config[name])}" for name in names if name in config]
            loss.changed = ", ".join(given)

    def began(self, event: Began, attempt: Attempt, lost_steps: int) -> Loss | None:
        """Note the beginning of an attempt; return the loss from which it recovers, or None."""
        for incident in reversed(self.kept):
            if isinstance(incident, DriverAbsence):
                if event.trial in incident.lost:
                    incident.back.add(event.trial)
                break
        loss = self._open.pop(event.trial, None)
        if loss is not None:
            loss.back_s = max(0.0, event.t - loss.t)
            loss.back_node, loss.back_step, loss.again = attempt.where, event.restored, lost_steps
            if not loss.revived:  # else the wait was the user's
                self._waits.append(loss.back_s)
        return loss
