"""Garbage collection of an experiment's checkpoints: what no live manifest refers to is deleted, once nothing runs."""

from __future__ import annotations

from regrow.search.history import History
from regrow.tasks import checkpoints
from regrow.tasks.checkpoints import Swept
from regrow.tasks.ports import Store


def collect(store: Store, history: History) -> Swept:
    """Deletes what attempts that this history saw end have left behind. A crash in between leaves the rest for the next time."""
    live = {c.manifest for trial in history.trials for c in trial.checkpoints.values()}
    ended = [(t.number, a.number) for t in history.trials for a in t.attempts if a.outcome is not None]
    return checkpoints.sweep(store, live, ended)
