"""What the log's events mean in MLflow: one parent run an experiment, one current run a trial.

A pure fold from segments to `RunUpdate`s; writing them is `mlflow_sink.py`, following the log is `recorder.py`. Every
update is a function of the log up to its segment, so that writing one again after a crash changes nothing.
"""

from __future__ import annotations

import json
import math
from typing import Any

from regrow.infra.mlflow_sink import RunUpdate, Status
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Created,
    Ended,
    Opened,
    Proposed,
    Reported,
    Retired,
    Row,
    Saved,
    Started,
)
from regrow.search.history import History, Trial
from regrow.search.lifecycle import TrialState
from regrow.tasks.names import task_name

_STATUS: dict[TrialState, Status] = {
    TrialState.DONE: "FINISHED",
    TrialState.STOPPED: "FINISHED",
    TrialState.FAILED: "FAILED",
    TrialState.PAUSED: "KILLED",
}
_CLOSED: dict[str, Status] = {"finished": "FINISHED", "failed": "FAILED"}
PARENT = "experiment"


class Runs:
    """Folds a log and collects what changed for each run since `take`."""

    def __init__(self) -> None:
        self.history = History()
        self._generation: dict[int, int] = {}
        """How often a trial's curve was cut back: each time a new MLflow run continues it."""
        self._rows: dict[int, list[Row]] = {}
        self._dirty: dict[int, None] = {}
        self._parent = False
        self._best: dict[str, str] = {}
        """Tags of the best trial when the experiment was last opened or closed."""
        self._retired: list[RunUpdate] = []

    def apply(self, event: AnyEvent) -> None:
        """Takes an event in."""
        if isinstance(event, Began):
            self._rewind(event)
        self.history.apply(event)
        match event:
            case Created():
                self._parent = True
            case Opened() | Closed():
                # A trial without an attempt counts as running while the experiment is open.
                self._parent = True
                self._note_best()
                self._dirty.update(
                    dict.fromkeys(n for s in TrialState if not s.final for n in self.history.by_state[s])
                )
            case Proposed() | Started() | Began() | Ended() | Saved() | Retired():
                self._dirty[event.trial] = None
            case Reported():
                self._dirty[event.trial] = None
                self._rows.setdefault(event.trial, []).extend(event.rows)
            case _:
                pass

    def take(self) -> list[RunUpdate]:
        """The updates since the last call, the parent run first."""
        updates = [self._parent_update()] if self._parent else []
        updates += self._retired
        updates += [self._trial_update(self.history.trials[n]) for n in self._dirty]
        self.skip()
        return updates

    def current(self) -> list[RunUpdate]:
        """What is known of every run that is not superseded, the parent first; nothing counts as taken."""
        return [self._parent_update(), *map(self._trial_update, self.history.trials)]

    def skip(self) -> None:
        """Forgets the updates since the last call: MLflow has them already."""
        self._parent, self._retired = False, []
        self._dirty.clear()
        self._rows.clear()

    def _note_best(self) -> None:
        best = self.history.trials[self.history.best] if self.history.best is not None else None
        if best is not None and best.best is not None:
            self._best = {"regrow.best_trial": str(best.number), "regrow.best_value": repr(best.best[0])}

    def _rewind(self, event: Began) -> None:
        """Points that are superseded stay in the run that they were written to; a new run takes over what still holds."""
        trial = self.history.trials[event.trial]
        if trial.step <= event.restored:
            return
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
        self._rows[trial.number] = [row for row in trial.rows if row.step <= event.restored]

    def _trial_update(self, trial: Trial) -> RunUpdate:
        history = self.history
        generation = self._generation.get(trial.number, 0)
        name = task_name(trial.number)
        closed = history.closed is not None
        status: Status = _STATUS.get(trial.state, "KILLED" if closed else "RUNNING")
        ended = [a.t_ended for a in trial.attempts if a.t_ended is not None]
        nodes = [a.node for a in trial.attempts if a.node]
        tags = {"regrow.state": trial.state.value, "regrow.attempts": str(len(trial.attempts))}
        if nodes:
            tags["regrow.node"] = nodes[-1]
        if any(a.message for a in trial.attempts):
            # Also where the last attempt has none: what an attempt before it said is there, and would stay.
            tags["regrow.reason"] = trial.attempts[-1].message or "-"
        for change in trial.changes:  # parameters of a run cannot change in MLflow
            source = "" if change.source is None else f" with the weights of trial {change.source}"
            tags[f"regrow.after_step_{change.step:06}"] = json.dumps(change.config)[:4000] + source
        if trial.checkpoints:
            tags["regrow.checkpoint"] = trial.checkpoints[max(trial.checkpoints)].manifest
        return RunUpdate(
            key=name if generation == 0 else f"{name}.{generation}",
            name=name,
            start_ms=_ms(trial.attempts[0].t_started if trial.attempts else history.t_created),
            params={key: _text(value) for key, value in trial.proposed.items()},
            tags=tags,
            metrics=[
                (metric, math.nan if value is None else value, row.step, _ms(row.t))
                for row in self._rows.get(trial.number, ())
                for metric, value in row.metrics.items()
            ],
            status=status,
            end_ms=None if status == "RUNNING" else _ms(max(ended, default=history.t_created)),
        )

    def _parent_update(self) -> RunUpdate:
        history, spec = self.history, self.history.spec
        closed = history.closed
        status: Status = "RUNNING" if closed is None else _CLOSED.get(closed.status, "KILLED")
        tags = {"regrow.experiment": spec.name, "regrow.sittings": str(history.sittings)}
        if history.opened is not None and history.opened.flow_run:
            tags["regrow.flow_run"] = history.opened.flow_run
        tags |= self._best
        return RunUpdate(
            key=PARENT, name=spec.name, start_ms=_ms(history.t_created), parent=True, tags=tags, status=status,
            params={key: _text(value) for key, value in _flat(_described(spec.to_json()))}, metrics=(),
            end_ms=None if closed is None else _ms(closed.t),
        )


def _described(spec: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in spec.items() if k not in ("env", "state", "working_dir")}


def _flat(spec: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in spec.items():
        if isinstance(value, dict) and value:
            flat += _flat(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _ms(t: float) -> int:
    return int(t * 1000)
