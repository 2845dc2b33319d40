"""How often a trial saves with `checkpoint: auto`, as seldom as the losses seen so far allow; and
which checkpoints of a trial are kept: the last ones, and the best.

Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974), with Daly's
correction, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22
(2006): sqrt(2 C M) - C, with C the duration of a checkpoint and M the mean time between losses of a
slot. Losses with a notice do not count: there the trial saves.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

from regrow.search.history import History, TrialRecord
from regrow.search.spec.parts import Checkpointing

FIRST_SECONDS = 4 * 3600.0
"""Before the first loss, one is supposed within this time of a slot."""
MOST_COST = 0.1
"""Most of the time that may go into checkpoints."""
LONGEST_SECONDS = 3600.0
"""Longest time between two checkpoints."""


def interval(history: History) -> float | None:
    """Return the seconds between two checkpoints of the next attempt; None: every step, as no
    checkpoint was measured yet.
    """
    cost = history.pace.save
    if cost is None:
        return None
    mean = (history.pace.ran + FIRST_SECONDS) / (history.pace.losses + 1)
    best = math.sqrt(2 * cost * mean) - cost
    return round(min(max(best, cost / MOST_COST), LONGEST_SECONDS), 3)


def surplus(
    trial: TrialRecord, policy: Checkpointing, sign: float, pinned: AbstractSet[str]
) -> list[str]:
    """Return the manifests that are no longer needed. `sign` makes the objective a cost; `pinned`
    are manifests that other trials wait for.
    """
    if len(trial.checkpoints) <= policy.keep_last and not trial.replaced and not trial.stale:
        return []
    kept = _kept(trial, policy, sign)
    old = [
        *trial.replaced,
        *(c.manifest for step, c in trial.checkpoints.items() if step not in kept),
    ]
    return [manifest for manifest in old if manifest not in pinned]


def _kept(trial: TrialRecord, policy: Checkpointing, sign: float) -> set[int]:
    """Return the steps of the checkpoints to keep: the newest, and the best. Steps that meet the
    constraints count as better than all others.
    """
    steps = sorted(step for step in trial.checkpoints if step >= trial.stale)
    broken = {step for step in trial.checkpoints if not trial.curve.feasible(step)}
    by_value = sorted(
        trial.checkpoints, key=lambda step: (step in broken, sign * trial.values[step - 1], step)
    )
    return set(steps[-policy.keep_last :]) | set(by_value[: policy.keep_best])
