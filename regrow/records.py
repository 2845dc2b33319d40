"""A result's trials and attempts as immutable values, as of the time when the log was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from regrow.infra.state.places import Places
from regrow.search.history import History, TrialRecord
from regrow.search.history.orders import TrialOrder
from regrow.search.numbers import readable
from regrow.show.views import summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """One run of a trial on one node.

    Attributes:
        number: number of the attempt within its trial.
        outcome: done, paused, stopped, failed, lost, preempted, or running.
        node: the node it ran on, None if unknown.
        gpus: its GPUs there, as in CUDA_VISIBLE_DEVICES; empty for none.
        from_step: step it started from (0: from the beginning).
        to_step: last step it reached.
        started: seconds since the epoch, None if it has not begun.
        ended: seconds since the epoch, None if it has not ended.
        cause: class of a loss (preempted, infrastructure, stalled, error, oom), empty for none.
        reason: one line, may be empty.
        trace: a traceback, may be empty.

    """

    number: int
    outcome: str
    node: str | None
    gpus: str
    from_step: int
    to_step: int
    started: float | None
    ended: float | None
    cause: str
    reason: str
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One configuration and its outcome.

    Attributes:
        state: pending, running, paused, lost, done, stopped or failed.
        config: nested, as the trainable saw it last.
        value: best value of the objective, None before the first report or if no step met the
            constraints.
        step: step of `value`, None if `value` is None.
        metrics: metrics at `step`; of the last step if several metrics are optimized.
        steps: number of steps it did.
        started: seconds since the epoch, None if it has not started.
        ended: seconds since the epoch, None if it has not ended.
        checkpoints: addresses of the manifests of the retained checkpoints, by step.
        attempts: all attempts, in order.
        dropped: whether the user dropped it; then it has no value.

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
    dropped: bool
    _order: Callable[[int, TrialOrder], None] = field(repr=False, compare=False)

    def drop(self) -> None:
        """Drop the trial, which has ended: it ranks no more, and nothing learns from it. Also while
        the experiment runs. Raises UserError for a trial that has not ended.
        """
        self._order(self.number, "drop")

    def keep(self) -> None:
        """Keep a dropped trial after all."""
        self._order(self.number, "keep")

    def stop(self) -> None:
        """Stop the trial: a running attempt leaves at its next report. Nothing happens to one that
        has ended.
        """
        self._order(self.number, "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class BestResult:
    """The best value of the objective at a step that meets the constraints, and how it was reached.

    Attributes:
        config: nested, as it was at that step.
        checkpoint: address of the manifest of that step's checkpoint, else of the trial's newest
            one; None if the trial has none.

    """

    trial: int
    value: float
    step: int
    config: dict[str, Any]
    metrics: Mapping[str, float | None] = field(repr=False)
    checkpoint: str | None = field(repr=False)
    _load: Callable[..., Path] = field(repr=False, compare=False)
    """See Result.load_checkpoint."""

    def load_checkpoint(self, folder: str | Path | None = None) -> Path:
        """Restore its checkpoint, verify every byte, and return the folder.

        `folder` must not exist; None: a new temporary one, which the caller deletes. Raises
        UserError if the trial has no checkpoint.
        """
        return self._load(self.trial, folder=folder)

    def _repr_html_(self) -> str:
        rows = [
            ("trial", self.trial),
            ("value", readable(self.value)),
            ("step", self.step),
            *self.config.items(),
        ]
        cells = "".join(
            f'<tr><th style="text-align:left">{escape(str(k))}</th><td>{escape(str(v))}</td></tr>'
            for k, v in rows
        )
        return f"<table>{cells}</table>"


def best_result(history: History, places: Places, load: Callable[..., Path]) -> BestResult | None:
    """Return the best result, None before the first report."""
    found = summaries.best(history)
    if found is None:
        return None
    trial = history.trials[found["trial"]]
    manifest = found["checkpoint"]
    return BestResult(
        trial=found["trial"],
        value=found["value"],
        step=found["step"],
        config=found["config"],
        metrics=dict(trial.curve.shown(found["step"])),
        _load=load,
        checkpoint=None if manifest is None else places.address(history.spec.name, manifest),
    )


def trial_result(
    history: History,
    trial: TrialRecord,
    places: Places,
    order: Callable[[int, TrialOrder], None],
) -> TrialResult:
    """Build the TrialResult of a trial from the history. `order` drops, keeps or stops a trial."""
    shown_step = summaries.representative_step(history, trial)
    value, step = trial.best or (None, None)
    name = history.spec.name
    return TrialResult(
        number=trial.number,
        state=trial.state.value,
        config=history.spec.space.nest(trial.config),
        value=value,
        step=step,
        metrics=dict(trial.curve.shown(shown_step)),
        steps=trial.step,
        started=trial.attempts[0].t_started if trial.attempts else None,
        ended=trial.attempts[-1].t_ended if trial.state.final and trial.attempts else None,
        checkpoints={
            s: places.address(name, saved.manifest) for s, saved in trial.checkpoints.items()
        },
        attempts=tuple(
            AttemptResult(
                number=a.number,
                outcome=a.outcome or "running",
                node=a.where,
                gpus=a.gpus,
                from_step=a.from_step,
                to_step=a.to_step,
                started=a.t_began,
                ended=a.t_ended,
                cause=a.cause,
                reason=a.message,
                trace=a.trace,
            )
            for a in trial.attempts
        ),
        dropped=trial.excluded,
        _order=order,
    )
