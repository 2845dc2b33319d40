"""Translation of the log's events to MLflow: a run per experiment, and below it one per trial.

A pure fold from segments to `RunUpdate`s. `infra/mlflow/sink.py` writes them; `recorder.py` follows
the log. Every update is a function of the log up to its segment, so writing one again after a crash
changes nothing.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    Excluded,
    Halted,
    Moved,
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
from regrow.search.measured import Usage
from regrow.search.planning import forecast
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
Media: TypeAlias = Callable[[TrialRecord, str], Mapping[str, Callable[[], bytes]]]
"""Returns the media of a trial that the run with a key lacks, as artifacts."""


class TrialRuns:
    """Folds a log and collects what changed for each run since `drain`."""

    def __init__(
        self,
        reports: Reports,
        address: Callable[[str], str] = lambda key: key,
        media: Media = lambda trial, key: {},  # noqa: ARG005 - none
    ) -> None:
        """`address`: maps a key of the experiment's store to an address for people."""
        self._reports, self._address, self._media = reports, address, media
        self.history = History()
        self._generation = Counter[int]()
        """By trial: how often its curve was rewound, and so continues in a new MLflow run."""
        self._metrics: dict[str, None] = {}
        """Names of all reported metrics."""
        self._rows: dict[int, list[Row]] = defaultdict(list)
        """By trial: rows reported since the last `drain`."""
        self._again: set[int] = set()
        """Trials that begin a new run. It gets all rows that count, from the log."""
        self._since: dict[int, int] = {}
        """By trial: the segment in which it was proposed."""
        self._bests: dict[str | int, list[Point]] = defaultdict(list)
        """By trial, and for the parent: points of best value, cost and machine use since the last
        `drain`.
        """
        self._cost = 0.0
        """Cost of the attempts that have ended."""
        self._parent_step = 0
        """Reports and rewinds so far: the steps of the parent's points, which never decrease."""
        self._dirty: dict[int, None] = {}
        self._parent = False
        self._best: parent_run.Best | None = None
        self._progress = ""
        """The experiment's progress in words when it was last opened or closed. `_checkpoint`: its
        best trial's checkpoint at that time. `_costs`: the tags of its cost.
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
        self._decisions: dict[int, dict[str, str]] = defaultdict(dict)
        """By trial: tags of the scheduler's last decision, and of the last rung."""
        self._dropped: set[int] = set()
        """Trials that the user dropped at some time."""
        self._retired: list[RunUpdate] = []
        self._with_media: set[int] = set()
        """Trials of which an attempt that may have logged media ended since the last `drain`."""
        self._notes = NONE

    def noted(self, notes: Notes) -> bool:
        """Set the users' notes and tags of the experiment. Returns whether they changed."""
        if notes == self._notes:
            return False
        self._notes, self._parent = notes, True
        return True

    def apply(self, event: AnyEvent, segment: int = 0) -> None:
        """Apply an event of this segment."""
        rewound = isinstance(event, Began) and self._rewind(event)
        trial = self.history.trials[event.trial] if isinstance(event, Reported) else None
        before = trial.best if trial is not None else None
        self.history.apply(event)
        of_parent = False
        match event:
            case Created():
                self._source = parent_run.source_tags(event.spec, {})
                self._files[parent_run.SPEC_FILE] = published_spec(self.history.spec.to_json())
                of_parent = True
            case Opened() | Closed():
                # A trial without an attempt counts as running while the experiment is open.
                if isinstance(event, Opened):
                    self._note_environment(event)
                of_parent = True
                alive = (state for state in TrialState if not state.final)
                self._dirty |= dict.fromkeys(n for s in alive for n in self.history.by_state[s])
            case Proposed():
                self._born[event.trial], self._since[event.trial] = self._source, segment
                self._dirty[event.trial] = None
            case (
                Started()
                | Began()
                | Ended()
                | Saved()
                | Retired()
                | Revived()
                | Excluded()
                | Halted()
                | Moved()
            ):
                self._dirty[event.trial] = None
                of_parent = isinstance(event, Excluded)
                self._dropped |= {event.trial} if of_parent else set()
                # The best value of all may change, which is another point.
                self._parent_step += of_parent
                if rewound:  # the rest of the curve continues in a new run
                    self._parent_step += 1
                    self._bests.pop(event.trial, None)
                    self._note_best(self.history.trials[event.trial], event.t)
            case Decided():
                self._decisions[event.trial] |= _decision(event)
                self._dirty[event.trial] = None
            case Reported():
                self._dirty[event.trial] = None
                if event.trial not in self._again:
                    self._rows[event.trial] += event.rows
                self._metrics |= dict.fromkeys(name for row in event.rows for name in row.metrics)
                self._parent_step += len(event.rows)
                if trial is not None and trial.best != before:
                    self._note_best(trial, event.t)
            case _:
                pass
        if isinstance(event, Ended):
            self._note_end(event)
        self._note_parent(event.t, of_parent=of_parent)

    def _note_parent(self, t: float, *, of_parent: bool) -> None:
        """Note what an event at `t` changes of the parent run; `of_parent`: whether the event
        concerns that run itself.
        """
        best = parent_run.best_of(self.history)
        if best != self._best:
            objective, found = self.history.objective.name, None if best is None else best[1:]
            self._bests[PARENT] += parent_run.best_points(
                objective, found, self._parent_step, _ms(t)
            )
        if of_parent or best != self._best:
            self._best, self._parent = best, True
        if of_parent:
            # Stored now, because the result in MLflow must not depend on when it is written.
            self._progress = parent_run.progress_markdown(self.history)
            self._costs = parent_run.cost_tags(self._cost, waste.of_all(self.history).values())
            self._checkpoint = best, parent_run.best_checkpoint(self.history, best, self._address)

    def drain(self) -> list[RunUpdate]:
        """Return the updates since the last call, the parent run first."""
        updates = [self.parent()] if self._parent else []
        updates += self._retired
        updates += [self._with_artifacts(self.history.trials[n]) for n in self._dirty]
        self.skip()
        return updates

    def current(self) -> list[RunUpdate]:
        """Return full updates of all current runs, the parent first; nothing counts as taken."""
        return [self.parent(), *map(self._trial_update, self.history.trials)]

    def skip(self) -> None:
        """Drop the updates since the last call: MLflow has them already."""
        self._parent, self._retired, self._files = False, [], {}
        for kept in (self._dirty, self._rows, self._again, self._bests, self._with_media):
            kept.clear()

    def key(self, trial: int, attempt: int) -> str | None:
        """Return the key of an attempt's run; None if it has not begun, or is not the last."""
        trials = self.history.trials
        attempts = trials[trial].attempts if trial < len(trials) else []
        began = attempts and attempts[-1].number == attempt and attempts[-1].t_began is not None
        return self.current_key(trial) if began else None

    def is_over(self, trial: int, attempt: int) -> bool:
        """Return whether an attempt that was started no longer holds its lease."""
        trials = self.history.trials
        started = trial < len(trials) and len(trials[trial].attempts) >= attempt
        return started and self.history.lease(trial, attempt) is None

    def current_key(self, trial: int) -> str:
        """Return the key of the run that has a trial's current curve."""
        generation = self._generation[trial]
        return f"{task_name(trial)}.{generation}" if generation else task_name(trial)

    def _note_environment(self, event: Opened) -> None:
        if not event.environment:  # from a coordinator, or a log of an older version
            return
        self._source = parent_run.source_tags(self.history.spec.to_json(), event.environment)
        if event.environment not in self._environments[-1:]:
            self._environments.append(event.environment)
            later = "" if len(self._environments) == 1 else f"-session-{self.history.sessions}"
            text = json.dumps(event.environment, indent=2, ensure_ascii=False)
            self._files[f"environment{later}.json"] = f"{text}\n".encode()

    def _note_best(self, trial: TrialRecord, t: float) -> None:
        """Add the trial's best value as points, unless the user reports a metric of that name."""
        if trial.best is not None:
            points = parent_run.best_points(
                self.history.objective.name, trial.best, trial.best[1], _ms(t)
            )
            self._bests[trial.number] += [one for one in points if one[0] not in self._metrics]

    def _note_end(self, event: Ended) -> None:
        trial = self.history.trials[event.trial]
        if event.media or event.outcome == "lost":
            self._with_media.add(event.trial)
        self._note_cost(trial, event.t)
        if event.usage is not None:
            self._bests[trial.number] += [
                (name, value, trial.step, _ms(event.t)) for name, value in _used(event.usage)
            ]

    def _note_cost(self, trial: TrialRecord, t: float) -> None:
        """Add the cost of the trial, and of all trials, when an attempt with a price has ended."""
        if (paid := trial.attempts[-1].cost) is None:
            return
        self._cost += paid
        own = cost.of_trial(trial, t) or 0.0
        self._bests[trial.number].append((COST, own, trial.step, _ms(t)))
        self._bests[PARENT].append((COST, self._cost, self._parent_step, _ms(t)))
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
        tags = {**old.tags, "mlflow.runName": name, "regrow.superseded": "true"}
        self._retired.append(
            replace(old, status="KILLED", tags=tags, end_ms=_ms(event.t), deleted=True)
        )
        self._generation[trial.number] += 1
        self._rows.pop(trial.number, None)
        self._again.add(trial.number)
        return True

    def _with_artifacts(self, trial: TrialRecord) -> RunUpdate:
        update = self._trial_update(trial)
        if trial.number not in self._with_media:
            return update
        return replace(update, media=self._media(trial, update.key))

    def _trial_update(self, trial: TrialRecord) -> RunUpdate:
        history = self.history
        name = task_name(trial.number)
        closed = history.closed is not None
        status: RunStatus = _STATUS.get(trial.state, "KILLED" if closed else "RUNNING")
        ended = [a.t_ended for a in trial.attempts if a.t_ended is not None]
        nodes = [a.where for a in trial.attempts if a.where]
        tags = {"regrow.state": trial.state.value, "regrow.attempts": str(len(trial.attempts))}
        tags |= self._born.get(trial.number, {}) | self._decisions.get(trial.number, {})
        if trial.number in self._dropped:
            tags["regrow.dropped"] = "true" if trial.excluded else "false"
        if nodes:
            tags["regrow.node"] = nodes[-1]
        if devices := [a.gpus for a in trial.attempts if a.gpus]:
            tags["regrow.gpus"] = devices[-1]
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
            config = json.dumps(change.config, ensure_ascii=False)[:4000]
            tags[f"regrow.after_step_{change.step:06}"] = config + source
        if trial.checkpoints:
            last = trial.checkpoints[max(trial.checkpoints)]
            tags["regrow.checkpoint"] = self._address(last.manifest)
        if trial.state is TrialState.FAILED and trial.attempts and trial.attempts[-1].trace:
            # The end of the traceback shows where the error occurred.
            trace = trial.attempts[-1].trace[-6000:].replace("````", "...")
            message = trial.attempts[-1].message
            tags[parent_run.NOTE_TAG] = f"**{message}**\n\n````\n{trace}\n````"
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
            after = max(0, self._since[trial.number] - 1)
            return _Logged(self._reports, after, trial.number, tuple(trial.curve.runs), bests)
        rows = self._rows.get(trial.number, ())
        return [*(point for row in rows for point in _points(row)), *bests]

    def parent(self) -> RunUpdate:
        """Return the full update of the experiment's own run, without marking anything as taken."""
        history, spec = self.history, self.history.spec
        closed = history.closed
        status: RunStatus = "RUNNING" if closed is None else _CLOSED.get(closed.status, "KILLED")
        tags = self._source | parent_run.machine_tags(
            self._environments[-1] if self._environments else {}
        )
        tags |= {
            "regrow.experiment": spec.name,
            "regrow.sessions": str(history.sessions),
            "regrow.trials": history.of_total(len(history.trials))
            if history.unlimited
            else str(history.total),
            "regrow.state": "running" if closed is None else closed.status,
        }
        if history.opened is not None and history.opened.flow_run:
            tags["regrow.flow_run"] = history.opened.flow_run
        checkpoint = self._checkpoint[1] if self._checkpoint[0] == self._best else None
        if limited := forecast.limits_text(history, history.t_last, alive=closed is None):
            tags["regrow.limits"] = limited
        tags |= self._costs | parent_run.best_tags(self._best, checkpoint)
        tags[parent_run.NOTE_TAG] = parent_run.note(
            history, self._best, checkpoint, self._progress, self._notes
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


def _used(usage: Usage) -> Iterator[tuple[str, float]]:
    """Yield metrics of the machine's use, by which MLflow can sort trials."""
    yield "system/regrow.cpus", usage.cpus
    yield "system/regrow.peak_memory_gb", round(usage.most_memory / 1e9, 3)
    yield "system/regrow.disk_wait", usage.disk_wait
    if usage.gpu is not None:
        yield "system/regrow.gpu", usage.gpu
        yield "system/regrow.peak_gpu_memory_gb", round(usage.most_gpu_memory / 1e9, 3)


def _decision(event: Decided) -> dict[str, str]:
    """Return the tags of a decision. A rung that the trial reached by it is given by its step."""
    why = f"{event.verdict} at step {event.step}{event.why and ': '}{event.why}"
    rung = {"regrow.rung": str(event.step)} if " rung " in f" {event.why}" else {}
    return {"regrow.decision": why, **rung}


def _ms(t: float) -> int:
    return int(t * 1000)
