"""An experiment's log events as Prefect events for automations, and as log lines for people.

Pure: log events in, Prefect events out. The names are permanent:

| event | when | payload, beyond experiment and trial |
|---|---|---|
| `regrow.experiment.started`, `.resumed` | a session begins | trials, slots, session |
| `regrow.experiment.finished`, `.stopped`, `.interrupted`, `.failed` | it ends | why, trials, counts, best |
| `regrow.experiment.budget` | the hours of `stop:` are over, and it ends | why |
| `regrow.trial.lost` | an attempt ended without a report of its end | attempt, step, cause, message, node |
| `regrow.trial.preempted` | an attempt left its node, which was about to end, with a checkpoint | the same |
| `regrow.trial.stalled` | it was lost because it reported nothing for `stall`; comes beside `lost` | the same |
| `regrow.trial.recovered` | a further attempt of such a trial has begun | attempt, step, seconds, node |
| `regrow.trial.failed` | a trial failed permanently | attempt, step, cause, message, node |
| `regrow.trial.best` | the best value so far; the newest of a few seconds | attempt, step, value, metric, mode, config |

All have a `text` for people, and the id of their `flow_run`, too. Their resource is
`regrow.trial.<experiment>.<number>` or `regrow.experiment.<experiment>`; the flow run and the
experiment are related resources.
"""  # noqa: E501 - a table of Markdown has no shorter lines

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Ended,
    Opened,
    Reported,
    Retired,
    Revived,
)
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefectEvent:
    """An event or a log line to send.

    Attributes:
        t: seconds since the epoch.
        line: line for the log of the flow run; "": none.
        level: level of the line.
        event: name of the event for automations; "": none.
        trial: number of the trial, None for an event of the experiment.
        payload: payload of the event.
        id: the same whenever the same event is made, so that it can be sent again.

    """

    t: float
    line: str = ""
    level: int = logging.INFO
    event: str = ""
    trial: int | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    id: UUID


def again(trial: TrialRecord) -> str:
    """Return in words what becomes of a failed trial that the user retries."""
    match trial.state:
        case TrialState.STOPPED:
            return "stopped, as was decided before it failed"
        case TrialState.PAUSED:
            return "paused, as was decided before it failed"
        case _:
            return "tried again"


class PrefectEvents:
    """A fold over a log. Emits nothing for sessions before the one that `driver` opened."""

    def __init__(self) -> None:
        self.history = History()
        self._down: dict[int, float] = {}
        """Trials whose last attempt was lost or preempted, and when (seconds since the epoch)."""
        self._best_value: float | None = None
        self._count = 0

    def take(self, event: AnyEvent) -> list[PrefectEvent]:
        """Apply an event of the log. Returns what to send about it."""
        history = self.history
        history.apply(event)
        self._count += 1
        match event:
            case Opened() if event.by == "driver":
                return self._opened(event)
            case Began():
                return self._began(event)
            case Reported():
                return self._improved(event.t)
            case Ended():
                return [*self._improved(event.t), *self._ended(event)]
            case Retired():
                return [self._over(event.t, history.trials[event.trial], event.why)]
            case Revived():
                trial = history.trials[event.trial]
                return [
                    self._made(
                        event.t, line=f"trial {event.trial}, which had failed, is {again(trial)}"
                    )
                ]
            case Closing():
                return [self._closing(event)]
            case Closed():
                return self._closed(event)
            case _:
                return []

    @property
    def progress(self) -> float:
        """Progress in percent: trials that ended count fully, others by their steps, if those are
        limited.
        """
        history = self.history
        if not history.total or not history.t_created:
            return 0.0
        most = history.spec.max_steps
        done = float(history.ended)
        if most:
            done += sum(min(t.curve.time / most, 1.0) for t in history.trials if not t.state.final)
        return min(100.0, 100.0 * done / history.total)

    @property
    def standing(self) -> str:
        """Progress in words."""
        history = self.history
        counts = ", ".join(f"{n} {state.value}" for state, n in history.counts.items() if n)
        told = f"{history.ended} of {history.total} trials ended" + (
            f" ({counts})" if counts else ""
        )
        if (leader := history.leader) is not None and (best := leader.best) is not None:
            told += (
                f"; best: trial {leader.number}, {history.spec.objective.name} {best[0]:.6g} at"
                f" step {best[1]}"
            )
        return told

    def _opened(self, event: Opened) -> list[PrefectEvent]:
        history = self.history
        first = history.sessions == 1
        what = " workers" if history.spec.resources.ranked else ""
        told = (
            f"{history.total} trials, up to {event.slots}{what} at a time"
            if first
            else f"continues: {self.standing}"
        )
        payload = {"trials": history.total, "slots": event.slots, "session": history.sessions}
        name = "regrow.experiment.started" if first else "regrow.experiment.resumed"
        return [self._made(event.t, line=told, event=name, payload=payload)]

    def _began(self, event: Began) -> list[PrefectEvent]:
        skipped = [
            self._made(
                event.t,
                line=f"trial {event.trial}: a checkpoint cannot be used: {why}",
                level=logging.WARNING,
            )
            for why in event.skipped
        ]
        since = self._down.pop(event.trial, None)
        if since is None:
            return skipped
        start = (
            f"after step {event.restored}, from its checkpoint"
            if event.restored
            else "from the beginning"
        )
        seconds = round(max(0.0, event.t - since), 3)
        where = self.history.trials[event.trial].attempts[-1].where
        told = (
            f"trial {event.trial} continues as attempt {event.attempt} on {where}, {start}"
            f" ({seconds:.1f} s later)"
        )
        payload = {
            "attempt": event.attempt,
            "step": event.restored,
            "seconds": seconds,
            "node": where,
        }
        return [
            *skipped,
            self._made(
                event.t,
                line=told,
                event="regrow.trial.recovered",
                trial=event.trial,
                payload=payload,
            ),
        ]

    def _improved(self, t: float) -> list[PrefectEvent]:
        history = self.history
        trial = history.leader
        if trial is None or (best := trial.best) is None:
            return []
        value, step = best
        metric = history.spec.objective
        # After a loss the best remaining value may be worse for a while. Neither that nor the
        # repeated steps are news.
        if self._best_value is not None and metric.sign * value >= metric.sign * self._best_value:
            return []
        self._best_value = value
        payload = {
            "attempt": trial.curve.attempt_at(step),
            "step": step,
            "value": value,
            "metric": metric.name,
            "mode": metric.mode,
            "config": history.spec.space.nest(history.path(trial.number, step)[-1]),
        }
        told = f"new best: trial {trial.number}, {metric.name} {value:.6g} at step {step}"
        return [
            self._made(t, line=told, event="regrow.trial.best", trial=trial.number, payload=payload)
        ]

    def _ended(self, event: Ended) -> list[PrefectEvent]:
        history = self.history
        trial = history.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        payload = {
            "attempt": event.attempt,
            "step": event.step,
            "cause": event.cause,
            "message": attempt.message,
            "node": attempt.where,
        }
        why = f": {attempt.message}" if attempt.message else ""
        if trial.state is TrialState.FAILED:
            told = f"{self._count_of(trial)} failed at step {trial.step}{why}"
            line = {"line": told, "level": logging.ERROR, "event": "regrow.trial.failed"}
        elif event.outcome in ("lost", "failed", "preempted"):
            self._down[event.trial] = event.t
            where = f" on {attempt.where}" if attempt.where else ""
            told = (
                f"trial {event.trial}, attempt {event.attempt}{where}: {event.outcome} at step"
                f" {event.step}{why}"
            )
            name = "regrow.trial.preempted" if event.outcome == "preempted" else "regrow.trial.lost"
            line = {"line": told, "level": logging.WARNING, "event": name}
        elif trial.state.final:
            return [self._over(event.t, trial, attempt.message)]
        else:
            # Paused, to continue later or with another configuration. Schedulers do that
            # frequently, so it is not reported.
            return []
        made = [self._made(event.t, trial=event.trial, payload=payload, **line)]
        if event.cause == "stalled":
            made.append(
                self._made(
                    event.t,
                    trial=event.trial,
                    payload={**payload, "text": told},
                    event="regrow.trial.stalled",
                )
            )
        return made

    def _closing(self, event: Closing) -> PrefectEvent:
        history = self.history
        hours, told = history.spec.stop.hours, f"ending: {event.why}"
        if event.by != "planner" or hours is None or history.elapsed(event.t) < hours * 3600:
            return self._made(event.t, line=told)
        return self._made(
            event.t, line=told, event="regrow.experiment.budget", payload={"why": event.why}
        )

    def _over(self, t: float, trial: TrialRecord, why: str) -> PrefectEvent:
        """Return the line for a trial that is done, or was stopped."""
        found = f", {self.history.spec.objective.name} {trial.best[0]:.6g}" if trial.best else ""
        told = (
            f"{self._count_of(trial)} {trial.state.value} at step"
            f" {trial.step}{found}{f': {why}' if why else ''}"
        )
        return self._made(t, line=told)

    def _closed(self, event: Closed) -> list[PrefectEvent]:
        history = self.history
        closing = history.closing.why if history.closing is not None else ""
        best = None
        if (leader := history.leader) is not None and (found := leader.best) is not None:
            best = {"trial": leader.number, "value": found[0], "step": found[1]}
        payload = {
            "why": closing,
            "trials": len(history.trials),
            "best": best,
            "counts": {state.value: n for state, n in history.counts.items() if n},
        }
        told = f"{event.status}{f', because {closing}' if closing else ''}: {self.standing}"
        level = logging.ERROR if event.status == "failed" else logging.INFO
        name = f"regrow.experiment.{event.status}"
        return [self._made(event.t, line=told, level=level, event=name, payload=payload)]

    def _count_of(self, trial: TrialRecord) -> str:
        return f"[{self.history.ended}/{self.history.total}] trial {trial.number}"

    def _made(self, t: float, **what: Any) -> PrefectEvent:
        payload = {
            "experiment": self.history.spec.name,
            **({"trial": what["trial"]} if what.get("trial") is not None else {}),
        }
        given = what.pop("payload", {})
        if what.get("event"):
            given = {"text": what.get("line", ""), **given}
        number = uuid5(
            UUID(self.history.id), f"{self._count}/{what.get('event', '')}/{what.get('line', '')}"
        )
        return PrefectEvent(t=t, payload={**payload, **given}, id=number, **what)
