"""Chooses which checkpoint to serve: a function of the history. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regrow.search.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A retained checkpoint, and the objective's `value` at its step. `rank`: lower is better,
    whatever the mode.
    """

    trial: int
    step: int
    value: float
    rank: float
    manifest: str


def candidates(history: History, trial: int | None = None) -> list[Candidate]:
    """Return the checkpoints that could be served, best first; `trial`: only of that trial, None:
    of all.

    The value at a checkpoint's own step counts: a trial may have had its best value at a step
    without a checkpoint. Steps that break a constraint are excluded. So are clones' first
    checkpoints, whose files are another trial's: at that step the trial reported values of weights
    that it no longer has. At equal values the lowest trial, and its first step, comes first.
    """
    if history.created is None:
        return []
    sign, of = (
        history.objective.sign,
        history.trials if trial is None else history.trials[trial : trial + 1],
    )
    found = [
        Candidate(
            trial=one.number,
            step=step,
            value=(value := one.values[step - 1]),
            rank=sign * value,
            manifest=saved.manifest,
        )
        for one in of
        for step, saved in one.checkpoints.items()
        if 0 < step <= one.step and saved.source is None and one.curve.feasible(step)
    ]
    return sorted(found, key=lambda one: (one.rank, one.trial, one.step))


def config_of(history: History, chosen: Candidate) -> dict[str, Any]:
    """Return the configuration at a checkpoint's step, nested; it may have changed since."""
    nested: dict[str, Any] = history.spec.space.nest(history.path(chosen.trial, chosen.step)[-1])
    return nested
