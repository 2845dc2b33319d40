"""Which checkpoints of a trial are kept: the last ones, and the best."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from regrow.search.history import TrialRecord
from regrow.search.spec.parts import Checkpointing


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
