"""What a result says of trials and attempts, as values: they stay what they were when the log was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Protocol

from regrow.infra.state.places import Places
from regrow.infra.views import summaries
from regrow.search.history import Attempt, History, TrialRecord


class Checkpoints(Protocol):
    """Where checkpoints are restored from; a Result is one."""

    def load_checkpoint(
        self, trial: int | None = None, step: int | None = None, folder: str | Path | None = None
    ) -> Path:
        """See Result."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """One run of a trial on one node.

    `outcome`: done, paused, stopped, failed, lost, preempted, or running. It went on from `from_step` (0: from the beginning)
    to `to_step`. `started` and `ended`: seconds since the epoch, None where it has not begun or not ended. `cause` is the
    class of a loss (preempted, infrastructure, error), empty for none; `reason` one line, `trace` a traceback, both may be empty.
    """

    number: int
    outcome: str
    node: str | None
    from_step: int
    to_step: int
    started: float | None
    ended: float | None
    cause: str
    reason: str
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One configuration and what became of it.

    `state`: pending, running, paused, lost, done, stopped or failed. `config` is nested, as the trainable saw it last.
    `value` is the best of the objective, at `step`, both None before the first report or where no step met the constraints.
    `metrics` are those at `step`; of the last step where there are several metrics to improve. `steps`: how many it did.
    `checkpoints`: those that are still kept, by step, as addresses of their manifests. `started` and `ended`: seconds since
    the epoch, None for not yet.
    """

    number: int
    state: str
    config: dict[str, Any]
    value: float | None
    step: int | None
    metrics: Mapping[str, float | None]
    steps: int
    started: float | None
    ended: float | None
    checkpoints: dict[int, str] = field(repr=False)
    attempts: tuple[AttemptResult, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestResult:
    """The best value of the objective at a step that meets the constraints, and how it was reached.

    `config` is nested, as it was at that step. `checkpoint` is the address of the manifest of that step's checkpoint, else of the
    trial's newest one, None where it has none.
    """

    trial: int
    value: float
    step: int
    config: dict[str, Any]
    metrics: Mapping[str, float | None] = field(repr=False)
    checkpoint: str | None = field(repr=False)
    _source: Checkpoints = field(repr=False, compare=False)

    def load_checkpoint(self, folder: str | Path | None = None) -> Path:
        """Restores its checkpoint, every byte verified; returns the folder.

        `folder` must not exist; None: a new temporary one, which is yours to delete. Raises UserError where there is none.
        """
        return self._source.load_checkpoint(self.trial, folder=folder)

    def _repr_html_(self) -> str:
        rows = [("trial", self.trial), ("value", f"{self.value:.6g}"), ("step", self.step), *self.config.items()]
        cells = "".join(f'<tr><th style="text-align:left">{escape(str(k))}</th><td>{escape(str(v))}</td></tr>' for k, v in rows)
        return f"<table>{cells}</table>"


def best_result(history: History, places: Places, source: Checkpoints) -> BestResult | None:
    """The best one, None before the first report."""
    found = summaries.best(history)
    if found is None:
        return None
    trial = history.trials[found["trial"]]
    return BestResult(
        trial=found["trial"], value=found["value"], step=found["step"], config=found["config"],
        metrics=dict(trial.curve.shown(found["step"])), _source=source,
        checkpoint=None if found["checkpoint"] is None else places.address(history.spec.name, found["checkpoint"]),
    )


def trial_result(history: History, trial: TrialRecord, places: Places) -> TrialResult:
    """What is known of a trial."""
    standing = summaries.standing_step(history, trial)
    value, step = trial.best or (None, None)
    name = history.spec.name
    return TrialResult(
        number=trial.number, state=trial.state.value, config=history.spec.space.nest(trial.config), value=value, step=step,
        metrics=dict(trial.curve.shown(standing)), steps=trial.step,
        started=trial.attempts[0].t_started if trial.attempts else None,
        ended=trial.attempts[-1].t_ended if trial.state.final and trial.attempts else None,
        checkpoints={s: places.address(name, saved.manifest) for s, saved in trial.checkpoints.items()},
        attempts=tuple(_attempt(a) for a in trial.attempts),
    )


def _attempt(attempt: Attempt) -> AttemptResult:
    return AttemptResult(
        number=attempt.number, outcome=attempt.outcome or "running", node=attempt.where, from_step=attempt.from_step,
        to_step=attempt.to_step, started=attempt.t_began, ended=attempt.t_ended, cause=attempt.cause, reason=attempt.message,
        trace=attempt.trace,
    )
