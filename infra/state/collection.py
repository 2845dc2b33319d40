"""Garbage collection of checkpoints: what no live manifest refers to, once nothing runs."""

from __future__ import annotations

from regrow.search.history import History
from regrow.tasks.checkpoint import saving
from regrow.tasks.checkpoint.saving import SweepResult
from regrow.tasks.ports.store import Store


def collect(store: Store, history: History) -> SweepResult:
    """Delete what attempts left behind that ended by this history. Repeatable after a crash."""
    live = {c.manifest for trial in history.trials for c in trial.checkpoints.values()}
    ended = [
        (t.number, a.number) for t in history.trials for a in t.attempts if a.outcome is not None
    ]
    return saving.sweep(store, live, ended)
