"""What an attempt's message says, by what is known: whose it is, whether it was said before, and the events that it makes."""

from __future__ import annotations

from typing import Any

import msgspec

from regrow.infra.coordinator.ledger import Ledger
from regrow.search.events import Asked, Began, Noted, Reported
from regrow.search.history import Attempt, History
from regrow.search.planning.suggesting import unlike
from regrow.tasks.messages import Progress


def node_of(history: History, progress: Progress) -> str:
    """The node from which an attempt, maybe a zombie, speaks; empty if that is not known."""
    found = _attempt(history, progress)
    return found.node_id if found is not None else ""


def told_already(history: History, progress: Progress) -> bool:
    """Whether this is an attempt's last message once more, whose first answer was lost."""
    attempt = _attempt(history, progress)
    if progress.ended is None or attempt is None:
        return False
    return attempt.outcome == progress.ended.outcome and not is_impostor(progress, attempt)


def is_impostor(progress: Progress, attempt: Attempt) -> bool:
    """Whether another task run than the one that holds the lease has sent this."""
    return progress.began is not None and attempt.task_run not in (None, progress.began.task_run)


def observe(ledger: Ledger, progress: Progress, attempt: Attempt) -> None:
    """Records what is new in a message of the attempt that holds the lease."""
    now = ledger.now()
    lease: dict[str, Any] = {"trial": progress.trial, "attempt": progress.attempt}
    trial = ledger.history.trials[progress.trial]
    if progress.began is not None and attempt.t_began is None:
        came = progress.began
        ledger.record(
            Began(
                t=now, **lease, **msgspec.structs.asdict(came.place), restored=came.restored, skipped=list(came.skipped),
                task_run=came.task_run, ago=came.ago, others=list(came.others),
            )
        )
    if rows := [row for row in progress.rows if row.step > trial.step]:
        ledger.record(Reported(t=now, **lease, rows=rows))
    for question in progress.asked:
        known = question.name in ledger.history.trials[progress.trial].config
        if not known and not unlike(ledger.history, question.name, question.distribution):
            ledger.record(Asked(t=now, **lease, name=question.name, distribution=question.distribution))
    if progress.noted:
        ledger.record(Noted(t=now, **lease, attributes=progress.noted))
    for saved in progress.saved:
        if attempt.saved < saved.step <= trial.step:
            ledger.record(msgspec.structs.replace(saved, t=now))
    if progress.ended is not None:
        ledger.record(msgspec.structs.replace(progress.ended, t=now, cost=attempt.told_cost(now)))


def _attempt(history: History, progress: Progress) -> Attempt | None:
    attempts = history.trials[progress.trial].attempts if 0 <= progress.trial < len(history.trials) else []
    return attempts[progress.attempt - 1] if 1 <= progress.attempt <= len(attempts) else None
