"""Translation of the log's events to MLflow: one parent run per experiment, one current run per
trial.

A pure fold from segments to `RunUpdate`s. `infra/mlflow/sink.py` writes them; `recorder.py` follows
the log. Every update is a function of the log up to its segment, so writing one again after a crash
changes nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from regrow.infra.mlflow import parent_run
from regrow.infra.mlflow.updates import Point, RunStatus, RunUpdate
from regrow.infra.state.notes import NONE, Notes
from regrow.infra.state.spec_file import published_spec
from regrow.search.curve import counting
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Created,
    Decided,
    Ended,
    Opened,
    Proposed,
    Reported,
    Retired,
    Revived,
    Row,
    Saved,
    Started,
)
from regrow.search.history import History, TrialRecord, cost, waste
from regrow.search.lifecycle import TrialState
from regrow.tasks.trial.names import task_name

_STATUS: dict[TrialState, RunStatus] = {
    TrialState.DONE: "FINISHED",
    TrialState.STOPPED: "FINISHED",
    TrialState.FAILED: "FAILED",
    TrialState.PAUSED: "KILLED",
}
_CLOSED: dict[str, RunStatus] = {"finished": "FINISHED", "failed": "FAILED"}
PARENT = "experiment"
COST = "regrow.cost"
"""Metric with the cost of a trial, by which MLflow can sort trials."""
Reports: TypeAlias = Callable[[int], Iterable[Reported]]
"""Returns all reports in the segments after the given one, read from the log again on each call."""


class Runs:
    """Folds a log and collects what changed for each run since `take`."""

    def __init__(self, reports: Reports, address: Callable[[str], str] = lambda key: key) -> None:
        """Start with an empty history. `address`: maps a key of the experiment's store to an
        address for people.
        """
        self._reports, self._address = reports, address
        self.history = History()
        self._generation: dict[int, int] = {}
        """How often a trial's curve was rewound, by trial. After each rewind a new MLflow run
        continues the curve.
        """
        self._metrics: dict[str, None] = {}
        """Names of all reported metrics."""
        self._rows: dict[int, list[Row]] = {}
        """By trial: rows reported since the last `take`."""
        self._again: set[int] = set()
        """Trials that begin a new run. It gets all rows that count, from the log."""
        self._since: dict[int, int] = {}
        """By trial: the segment in which it was proposed."""
        self._bests: dict[str | int, list[Point]] = {}
        """By trial, and for the parent: points of the best value since the last `take`, and of the
        cost.
        """
        self._cost = 0.0
        """Cost of the attempts that have ended."""
        self._told = 0
        """Reports and rewinds so far: the steps of the parent's points, which never decrease."""
        self._dirty: dict[int, None] = {}
        self._parent = False
        self._best: parent_run.Best | None = None
        self._standing = ""
        """The experiment's progress in words when it was last opened or closed. `_checkpoint`: its
        best trial's checkpoint at that time.
        """
        self._costs: dict[str, str] = {}
        self._checkpoint: tuple[parent_run.Best | None, str | None] = None, None
        self._files: dict[str, bytes] = {}
        """Artifacts of the parent run to be written."""
        self._environments: list[dict[str, Any]] = []
        """The environments of the sessions; one equal to that of the session before is left out."""
        self._source: dict[str, str] = {}
        self._born: dict[int, dict[str, str]] = {}
        """By trial: tags of the code with which it was proposed."""
        self._decisions: dict[int, dict[str, str]] = {}
        """By trial: tags of the scheduler's last decision."""
        self._retired: list[RunUpdate] = []
        self._notes = NONE

    def noted(self, notes: Notes) -> bool:
        """Set the users' notes and tags of the experiment. Returns whether they changed."""
        if notes == self._notes:
            return False
        self._notes, self._parent = notes, True
        return True

    def parent(self) -> RunUpdate:
        """Return the full update of the experiment's own run, without marking anything as taken."""
        return self._parent_update()

    def apply(self, event: AnyEvent, segment: int = 0) -> None:
        """Apply an event of this segment."""
        rewound = isinstance(event, Began) and self._rewind(event)
        trial = self.history.trials[event.trial] if isinstance(event, Reported) else None
        before = trial.best if trial is not None else None
        self.history.apply(event)
        told = False
        match event:
            case Created():
                self._source = parent_run.source_tags(event.spec, {})
                self._files[parent_run.SPEC_FILE] = published_spec(self.history.spec.to_json())
                told = True
            case Opened() | Closed():
                # A trial without an attempt counts as running while the experiment is open.
                if isinstance(event, Opened):
                    self._note_environment(event)
                told = True
                self._dirty.update(
                    dict.fromkeys(
                        n for s in TrialState if not s.final for n in self.history.by_state[s]
                    )
                )
            case Proposed():
                self._born[event.trial], self._since[event.trial] = self._source, segment
                self._dirty[event.trial] = None
            case Started() | Began() | Ended() | Saved() | Retired() | Revived():
                self._dirty[event.trial] = None
                if rewound:  # the rest of the curve continues in a new run
                    self._told += 1
                    self._bests.pop(event.trial, None)
                    self._note_best(self.history.trials[event.trial], event.t)
            case Decided():
                self._decisions[event.trial] = _decision(event) | _rung(
                    event, self._decisions.get(event.trial, {})
                )
                self._dirty[event.trial] = None
            case Reported():
                self._dirty[event.trial] = None
                if event.trial not in self._again:
                    self._rows.setdefault(event.trial, []).extend(event.rows)
                self._metrics.update(
                    dict.fromkeys(name for row in event.rows for name in row.metrics)
                )
                self._told += len(event.rows)
                if trial is not None and trial.best != before:
                    self._note_best(trial, event.t)
            case _:
                pass
        if isinstance(event, Ended):
            self._note_cost(self.history.trials[event.trial], event.t)
        best = parent_run.best_of(self.history)
        if best != self._best:
            objective, found = self.history.objective.name, None if best is None else best[1:]
            self._bests.setdefault(PARENT, []).extend(
                parent_run.best_points(objective, found, self._told, _ms(event.t))
            )
        if told or best != self._best:
            self._best, self._parent = best, True
        if told:
            # Stored now, because the result in MLflow must not depend on when it is written.
            self._standing = parent_run.standing(self.history)
            self._costs = parent_run.cost_tags(self._cost, waste.of_all(self.history).values())
            self._checkpoint = best, parent_run.best_checkpoint(self.history, best, self._address)

    def take(self) -> list[RunUpdate]:
        """Return the updates since the last call, the parent run first."""
        updates = [self._parent_update()] if self._parent else []
        updates += self._retired
        updates += [self._trial_update(self.history.trials[n]) for n in self._dirty]
        self.skip()
        return updates

    def current(self) -> list[RunUpdate]:
        """Return full updates of every run that is not superseded, the parent first, without
        marking anything as taken.
        """
        return [self._parent_update(), *map(self._trial_update, self.history.trials)]

    def skip(self) -> None:
        """Drop the updates since the last call: MLflow has them already."""
        self._parent, self._retired, self._files = False, [], {}
        for kept in (self._dirty, self._rows, self._again, self._bests):
            kept.clear()

    def key(self, trial: int, attempt: int) -> str | None:
        """Return the key of the run for an attempt's work; None if the attempt has not begun, or is
        not the last one.
        """
        trials = self.history.trials
        current = (
            trials[trial].attempts[-1] if trial < len(trials) and trials[trial].attempts else None
        )
        if current is None or current.number != attempt or current.t_began is None:
            return None
        return self.current_key(trial)

    def is_over(self, trial: int, attempt: int) -> bool:
        """Return whether an attempt that was started no longer holds its lease."""
        trials = self.history.trials
        started = trial < len(trials) and len(trials[trial].attempts) >= attempt
        return started and self.history.lease(trial, attempt) is None

    def current_key(self, trial: int) -> str:
        """Return the key of the run that has a trial's current curve."""
        return _key(trial, self._generation.get(trial, 0))

    def _note_environment(self, event: Opened) -> None:
        if not event.environment:  # from a coordinator, or a log of an older version
            return
        self._source = parent_run.source_tags(self.history.spec.to_json(), event.environment)
        if event.environment not in self._environments[-1:]:
            self._environments.append(event.environment)
            name = (
                "environment.json"
                if len(self._environments) == 1
                else f"environment-session-{self.history.sessions}.json"
            )
            self._files[name] = parent_run.environment_file(event.environment)

    def _note_best(self, trial: TrialRecord, t: float) -> None:
        """Add the trial's best value as points, unless the user reports a metric of that name."""
        if trial.best is not None:
            points = parent_run.best_points(
                self.history.objective.name, trial.best, trial.best[1], _ms(t)
            )
            self._bests.setdefault(trial.number, []).extend(
                point for point in points if point[0] not in self._metrics
            )

    def _note_cost(self, trial: TrialRecord, t: float) -> None:
        """Add the cost of the trial, and of all trials, at the end of an attempt; nothing if the
        attempt had no price.
        """
        if (paid := trial.attempts[-1].cost) is None:
            return
        self._cost += paid
        self._bests.setdefault(trial.number, []).append(
            (COST, cost.of_trial(trial, t) or 0.0, trial.step, _ms(t))
        )
        self._bests.setdefault(PARENT, []).append((COST, self._cost, self._told, _ms(t)))
        self._parent = True

    def _rewind(self, event: Began) -> bool:
        """Return whether an attempt rewinds. If so, superseded rows stay in the run that they were
        written to, and a new run takes over those that count.
        """
        trial = self.history.trials[event.trial]
        if trial.step <= event.restored:
            return False
        old = self._trial_update(trial)
        name = f"{task_name(trial.number)} (until attempt {event.attempt - 1}, superseded)"
        self._retired.append(
            RunUpdate(
                key=old.key,
                name=old.name,
                start_ms=old.start_ms,
                params=old.params,
                metrics=old.metrics,
                status="KILLED",
                tags={**old.tags, "mlflow.runName": name, "regrow.superseded": "true"},
                end_ms=_ms(event.t),
                deleted=True,
            )
        )
        self._generation[trial.number] = self._generation.get(trial.number, 0) + 1
        self._rows.pop(trial.number, None)
        self._again.add(trial.number)
        return True

    def _trial_update(self, trial: TrialRecord) -> RunUpdate:
        history = self.history
        name = task_name(trial.number)
        closed = history.closed is not None
        status: RunStatus = _STATUS.get(trial.state, "KILLED" if closed else "RUNNING")
        ended = [a.t_ended for a in trial.attempts if a.t_ended is not None]
        nodes = [a.where for a in trial.attempts if a.where]
        tags = {"regrow.state": trial.state.value, "regrow.attempts": str(len(trial.attempts))}
        tags |= self._born.get(trial.number, {}) | self._decisions.get(trial.number, {})
        if nodes:
            tags["regrow.node"] = nodes[-1]
        if markets := [a.market for a in trial.attempts if a.market and a.t_began is not None]:
            tags["regrow.market"] = markets[-1]
        tags |= parent_run.cost_tags(
            sum(a.cost or 0.0 for a in trial.attempts), waste.of_trial(trial).values()
        )
        if any(a.message for a in trial.attempts):
            # Also if the last attempt has no message: otherwise the message of an earlier attempt
            # would remain.
            tags["regrow.reason"] = trial.attempts[-1].message or "-"
        for change in trial.changes:  # parameters of a run cannot change in MLflow
            source = "" if change.source is None else f" with the weights of trial {change.source}"
            tags[f"regrow.after_step_{change.step:06}"] = (
                json.dumps(change.config, ensure_ascii=False)[:4000] + source
            )
        if trial.checkpoints:
            tags["regrow.checkpoint"] = self._address(
                trial.checkpoints[max(trial.checkpoints)].manifest
            )
        if trial.state is TrialState.FAILED and trial.attempts and trial.attempts[-1].trace:
            tags[parent_run.NOTE_TAG] = _traceback(
                trial.attempts[-1].message, trial.attempts[-1].trace
            )
        elif trial.revived:  # otherwise the note of its failure would remain
            failed = next(
                (a for a in reversed(trial.attempts) if a.outcome == "failed"), trial.attempts[-1]
            )
            tags[parent_run.NOTE_TAG] = (
                f"It failed in attempt {failed.number} (*{failed.message}*) and was tried again."
            )
        return RunUpdate(
            key=self.current_key(trial.number),
            name=name,
            start_ms=_ms(trial.attempts[0].t_started if trial.attempts else history.t_created),
            params={key: parent_run.text(value) for key, value in trial.proposed.items()},
            tags=tags,
            metrics=self._points(trial),
            status=status,
            end_ms=None if status == "RUNNING" else _ms(max(ended, default=history.t_created)),
        )

    def _points(self, trial: TrialRecord) -> Iterable[Point]:
        bests = self._bests.get(trial.number, [])
        if trial.number in self._again:
            return _Logged(
                self._reports,
                max(0, self._since[trial.number] - 1),
                trial.number,
                tuple(trial.curve.runs),
                bests,
            )
        return [
            *(point for row in self._rows.get(trial.number, ()) for point in _points(row)),
            *bests,
        ]

    def _parent_update(self) -> RunUpdate:
        history, spec = self.history, self.history.spec
        closed = history.closed
        status: RunStatus = "RUNNING" if closed is None else _CLOSED.get(closed.status, "KILLED")
        tags = self._source | parent_run.machine_tags(
            self._environments[-1] if self._environments else {}
        )
        tags |= {
            "regrow.experiment": spec.name,
            "regrow.sessions": str(history.sessions),
            "regrow.trials": str(history.total),
        }
        tags["regrow.state"] = "running" if closed is None else closed.status
        if history.opened is not None and history.opened.flow_run:
            tags["regrow.flow_run"] = history.opened.flow_run
        checkpoint = self._checkpoint[1] if self._checkpoint[0] == self._best else None
        tags |= self._costs
        tags |= parent_run.best_tags(self._best, checkpoint)
        tags[parent_run.NOTE_TAG] = parent_run.note(
            history, self._best, checkpoint, self._standing, self._notes
        )
        tags |= parent_run.user_tags(self._notes)
        return RunUpdate(
            key=PARENT,
            name=spec.name,
            start_ms=_ms(history.t_created),
            parent=True,
            tags=tags,
            status=status,
            params=parent_run.settings(spec.to_json()),
            metrics=self._bests.get(PARENT, ()),
            artifacts=dict(self._files),
            end_ms=None if closed is None else _ms(closed.t),
        )


@dataclass(frozen=True, slots=True)
class _Logged:
    """The points of a trial's curve with the given `runs`, read from the log on each iteration, as
    there may be millions; then `more`.
    """

    reports: Reports
    after: int
    trial: int
    runs: tuple[tuple[int, int], ...]
    more: Sequence[Point]

    def __iter__(self) -> Iterator[Point]:
        for event in self.reports(self.after):
            if event.trial == self.trial:
                for row in counting(self.runs, event.attempt, event.rows):
                    yield from _points(row)
        yield from self.more


def _points(row: Row) -> Iterator[Point]:
    at = _ms(row.t)
    return (
        (metric, math.nan if value is None else value, row.step, at)
        for metric, value in row.metrics.items()
    )


def _key(trial: int, generation: int) -> str:
    return task_name(trial) if generation == 0 else f"{task_name(trial)}.{generation}"


def _decision(event: Decided) -> dict[str, str]:
    return {
        "regrow.decision": f"{event.verdict} at step {event.step}{event.why and ': '}{event.why}"
    }


def _rung(event: Decided, before: dict[str, str]) -> dict[str, str]:
    """Return the tag of the last rung that the trial reached, if the scheduler has rungs; a rung is
    given by its step.
    """
    if " rung " in f" {event.why}":
        return {"regrow.rung": str(event.step)}
    return {"regrow.rung": before["regrow.rung"]} if "regrow.rung" in before else {}


def _traceback(message: str, trace: str) -> str:
    """Return the message and the end of the traceback, which shows where the error occurred."""
    return f"**{message}**\n\n````\n{trace[-6000:].replace('````', '...')}\n````"


def _ms(t: float) -> int:
    return int(t * 1000)
