"""An experiment's log events as Prefect events for automations, and as log lines for people.

Pure: log events in, Prefect events out. The names are permanent:

| event | when | payload, beyond experiment and trial |
|---|---|---|
| `regrow.experiment.started`, `.resumed` | a session begins | trials, slots, session |
| `regrow.experiment.finished`, `.stopped`, `.interrupted`, `.failed` | it ends | why, trials, counts, best |
| `regrow.experiment.budget` | half, four fifths or all of the money or time of `stop:` are used | why, percent |
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Ended,
    Excluded,
    Halted,
    Milestone,
    Moved,
    Opened,
    Reported,
    Retired,
    Revived,
)
from regrow.search.history import History, TrialRecord, repeats
from regrow.search.lifecycle import TrialState
from regrow.search.numbers import readable
from regrow.search.planning import limits

EXPERIMENT_RESOURCE = "regrow.experiment."
"""Beginning of the id of an experiment's resource, before its name."""
NOTIFIED_PERCENT = 50
"""Milestones of a limit from here on are events."""


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
        self._t, self._count = 0.0, 0
        """Time and number of the last event."""

    def apply(self, event: AnyEvent) -> list[PrefectEvent]:
        """Apply an event of the log. Returns what to send about it."""
        self.history.apply(event)
        self._t, self._count = event.t, self._count + 1
        return list(self._events_of(event))

    def _events_of(self, event: AnyEvent) -> Iterator[PrefectEvent]:
        history = self.history
        match event:
            case Opened() if event.by == "driver":
                yield self._opened(event)
            case Began():
                yield from self._began(event)
            case Reported():
                yield from self._improved()
            case Ended():
                yield from self._improved()
                yield from self._ended(event)
            case Retired():
                yield self._over(history.trials[event.trial], event.why)
            case Revived():
                how = again(history.trials[event.trial])
                yield self._made(f"trial {event.trial}, which had failed, is {how}")
            case Moved():
                yield self._made(f"trial {event.trial} leaves its machine: {event.why}")
            case Halted():
                yield self._made(f"the user stopped trial {event.trial}; {self.progress_text}")
            case Excluded():
                leader = history.leader
                self._best_value = leader.best[0] if leader and leader.best else None
                what = "dropped" if event.excluded else "kept"
                yield self._made(f"trial {event.trial} is {what}; {self.progress_text}")
            case Closing():
                hours, line = history.spec.stop.hours, f"ending: {event.why}"
                spent = hours is not None and history.elapsed(event.t) >= hours * 3600
                if event.by == "planner" and (spent or event.limit):
                    name = "regrow.experiment.budget"
                    yield self._made(line, name, why=event.why, percent=100)
                else:
                    yield self._made(line)
            case Milestone() if event.percent >= NOTIFIED_PERCENT:
                what = limits.in_words(history, event)
                name = "regrow.experiment.budget"
                yield self._made(what, name, why=what, percent=event.percent)
            case Closed():
                yield self._closed(event)

    @property
    def progress(self) -> float:
        """Progress in percent: of trials that run, the steps count, if those are limited."""
        history = self.history
        if not history.total or not history.t_created:
            return 0.0
        if history.unlimited:
            return 100.0 * limits.share(history, self._t)
        most = history.spec.max_steps
        done = float(history.ended)
        if most:
            done += sum(min(t.curve.time / most, 1.0) for t in history.trials if not t.state.final)
        return min(100.0, 100.0 * done / history.total)

    @property
    def progress_text(self) -> str:
        """Progress in words."""
        history = self.history
        counts = ", ".join(f"{n} {state.value}" for state, n in history.counts.items() if n)
        text = f"{history.of_total(history.ended)} trials ended"
        text += f" ({counts})" if counts else ""
        if (best := repeats.best(history)) is not None:
            value = f"{history.spec.objective.name} {best.shown} at step {best.step}"
            text += f"; best: trial {best.trial.number}, {value}"
        return text

    def _opened(self, event: Opened) -> PrefectEvent:
        history = self.history
        event_name, what = "regrow.experiment.resumed", f"continues: {self.progress_text}"
        if history.sessions == 1:
            workers = " workers" if history.spec.resources.ranked else ""
            event_name = "regrow.experiment.started"
            trials = f"{history.total} trial{'' if history.total == 1 else 's'}"
            if history.unlimited:
                trials = "as many trials as fit"
            what = f"started: {trials}, up to {event.slots}{workers} at a time"
        total, session = history.total, history.sessions
        return self._made(what, event_name, trials=total, slots=event.slots, session=session)

    def _began(self, event: Began) -> Iterator[PrefectEvent]:
        for why in event.skipped:
            line = f"trial {event.trial}: a checkpoint cannot be used: {why}"
            yield self._made(line, level=logging.WARNING)
        since = self._down.pop(event.trial, None)
        if since is None:
            return
        start = "from the beginning"
        if event.restored:
            start = f"after step {event.restored}, from its checkpoint"
        seconds = round(max(0.0, event.t - since), 3)
        where = self.history.trials[event.trial].attempts[-1].where
        yield self._made(
            f"trial {event.trial} continues as attempt {event.attempt} on {where}, {start}"
            f" ({seconds:.1f} s later)",
            "regrow.trial.recovered",
            trial=event.trial,
            attempt=event.attempt,
            step=event.restored,
            seconds=seconds,
            node=where,
        )

    def _improved(self) -> Iterator[PrefectEvent]:
        history = self.history
        trial = history.leader
        if trial is None or (best := trial.best) is None:
            return
        value, step = best
        metric = history.spec.objective
        # After a loss the best remaining value may be worse for a while. Neither that nor the
        # repeated steps are news.
        if self._best_value is not None and metric.sign * value >= metric.sign * self._best_value:
            return
        self._best_value = value
        yield self._made(
            f"new best: trial {trial.number}, {metric.name} {readable(value)} at step {step}",
            "regrow.trial.best",
            trial=trial.number,
            attempt=trial.curve.attempt_at(step),
            step=step,
            value=value,
            metric=metric.name,
            mode=metric.mode,
            config=history.spec.space.nest(history.path(trial.number, step)[-1]),
        )

    def _ended(self, event: Ended) -> Iterator[PrefectEvent]:
        trial = self.history.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        payload: dict[str, Any] = {
            "attempt": event.attempt,
            "step": event.step,
            "cause": event.cause,
            "message": attempt.message,
            "node": attempt.where,
        }
        why = f": {attempt.message}" if attempt.message else ""
        if trial.state is TrialState.FAILED:
            text = f"{self._count_of(trial)} failed at step {trial.step}{why}"
            name, level = "regrow.trial.failed", logging.ERROR
        elif event.outcome in ("lost", "failed", "preempted"):
            self._down[event.trial] = event.t
            where = f" on {attempt.where}" if attempt.where else ""
            how = f"{event.outcome} at step {event.step}{why}"
            text = f"trial {event.trial}, attempt {event.attempt}{where}: {how}"
            name = "regrow.trial.preempted" if event.outcome == "preempted" else "regrow.trial.lost"
            level = logging.WARNING
        else:
            # A trial that is paused continues later, or with another configuration. Schedulers do
            # that frequently, so it is not reported.
            if trial.state.final:
                yield self._over(trial, attempt.message)
            return
        yield self._made(text, name, level=level, trial=event.trial, **payload)
        if event.cause == "stalled":
            name = "regrow.trial.stalled"
            yield self._made(event=name, trial=event.trial, text=text, **payload)

    def _over(self, trial: TrialRecord, why: str) -> PrefectEvent:
        """Return the line for a trial that is done, or was stopped."""
        found = (
            f", {self.history.spec.objective.name} {readable(trial.best[0])}" if trial.best else ""
        )
        reason = f": {why}" if why else ""
        how = f"{trial.state.value} at step {trial.step}{found}{reason}"
        return self._made(f"{self._count_of(trial)} {how}")

    def _closed(self, event: Closed) -> PrefectEvent:
        history = self.history
        closing = history.closing.why if history.closing is not None else ""
        best = None
        if (found := repeats.best(history)) is not None:
            best = {"trial": found.trial.number, "value": found.counts, "step": found.step}
        return self._made(
            f"{event.status}{f', because {closing}' if closing else ''}: {self.progress_text}",
            f"regrow.experiment.{event.status}",
            level=logging.ERROR if event.status == "failed" else logging.INFO,
            why=closing,
            trials=len(history.trials),
            best=best,
            counts={state.value: n for state, n in history.counts.items() if n},
        )

    def _count_of(self, trial: TrialRecord) -> str:
        return f"[{self.history.of_total(self.history.ended, '/')}] trial {trial.number}"

    def _made(
        self,
        line: str = "",
        event: str = "",
        *,
        level: int = logging.INFO,
        trial: int | None = None,
        **payload: Any,
    ) -> PrefectEvent:
        whose: dict[str, Any] = {"experiment": self.history.spec.name}
        whose |= {} if trial is None else {"trial": trial}
        text = {"text": line} if event else {}
        return PrefectEvent(
            t=self._t,
            line=line,
            level=level,
            event=event,
            trial=trial,
            payload={**whose, **text, **payload},
            id=uuid5(UUID(self.history.id), f"{self._count}/{event}/{line}"),
        )
