"""An attempt's message against the history: its sender, whether it is a repetition, its events."""

from __future__ import annotations

from typing import Any

import msgspec

from regrow.flows.coordinator.ledger import Ledger
from regrow.search.events import Asked, Noted, Reported
from regrow.search.history import Attempt, History
from regrow.search.samplers import suggests
from regrow.tasks.output.traces import one_line, printable
from regrow.tasks.ports.messages import Progress


def node_of(history: History, progress: Progress) -> str:
    """Return the node of the attempt, possibly a zombie, that sent the message; "": unknown."""
    found = _attempt(history, progress)
    return found.node_id if found is not None else ""


def is_repeated(history: History, progress: Progress) -> bool:
    """Return whether this repeats an attempt's last message, whose answer was lost."""
    attempt = _attempt(history, progress)
    if progress.ended is None or attempt is None:
        return False
    return attempt.outcome == progress.ended.outcome and not is_impostor(progress, attempt)


def is_impostor(progress: Progress, attempt: Attempt) -> bool:
    """Return whether the message comes from another task run than the one that holds the lease."""
    return progress.began is not None and attempt.task_run not in (None, progress.began.task_run)


def observe(
    ledger: Ledger, progress: Progress, attempt: Attempt, *, draining: bool
) -> dict[str, str]:
    """Record what is new in a message of the attempt that holds the lease. Return why requested
    values are refused, by parameter.

    `draining`: whether a node of the attempt is about to go away. Raises IllegalMove and
    Unrecordable for news that cannot follow, or cannot be in the log; what preceded it is recorded.
    """
    now = ledger.now()
    lease: dict[str, Any] = {"trial": progress.trial, "attempt": progress.attempt}
    trial = ledger.history.trials[progress.trial]
    if progress.began is not None and attempt.t_began is None:
        skipped = [printable(why) for why in progress.began.skipped]
        ledger.record(msgspec.structs.replace(progress.began, t=now, **lease, skipped=skipped))
    if rows := [row for row in progress.rows if row.step > trial.step]:
        exact = {row.step: progress.exact[row.step] for row in rows if row.step in progress.exact}
        ledger.record(Reported(t=now, **lease, rows=rows, exact=exact or None))
    refused = _record_questions(ledger, progress, now)
    if progress.noted:
        ledger.record(Noted(t=now, **lease, attributes=progress.noted))
    for saved in progress.saved:
        if attempt.saved < saved.step <= trial.step:
            ledger.record(msgspec.structs.replace(saved, t=now, **lease))
    if (ended := progress.ended) is not None:
        leaves = draining or ledger.history.closing is not None
        # all attempts have to end, and this one got the signal before the reason
        if ended.outcome == "preempted" and leaves:
            ended = msgspec.structs.replace(ended, cause="preempted")
        fields = {
            "message": printable(ended.message),
            "trace": printable(ended.trace),
            "cost": attempt.recorded_cost(now),
        }
        ledger.record(
            msgspec.structs.replace(ended, t=now, **lease, by="attempt", narrower=False, **fields)
        )
    return refused


def _record_questions(ledger: Ledger, progress: Progress, now: float) -> dict[str, str]:
    """Record which values the trial asks for, except those that it has. Return why others are
    refused, by parameter.
    """
    refused: dict[str, str] = {}
    for question in progress.asked:
        if question.name in ledger.history.trials[progress.trial].config:
            continue
        if not suggests(ledger.history.spec.search):
            refused[question.name] = (
                f"{question.name!r}: values are asked for with `search: define_by_run` alone"
            )
            continue
        first = ledger.history.asked_first.get(question.name, question.distribution)
        if problem := _clash(question.name, first, question.distribution):
            refused[question.name] = problem
        else:
            ledger.record(
                Asked(
                    t=now,
                    trial=progress.trial,
                    attempt=progress.attempt,
                    name=question.name,
                    distribution=question.distribution,
                )
            )
    return refused


def refuse(ledger: Ledger, progress: Progress, why: Exception) -> str:
    """End an attempt whose news cannot be recorded, as its trial's own error: another attempt would
    send the same.

    Returns the message.
    """
    message = one_line(f"what it reported cannot be recorded: {why}")
    ledger.end((progress.trial, progress.attempt), "failed", "error", message)
    return message


def _clash(name: str, first: dict[str, Any], distribution: dict[str, Any]) -> str:
    from regrow.search.samplers.define_by_run_model import clash, unusable  # imports Optuna

    return clash(name, first, distribution) or unusable(name, distribution)


def _attempt(history: History, progress: Progress) -> Attempt | None:
    attempts = (
        history.trials[progress.trial].attempts if 0 <= progress.trial < len(history.trials) else []
    )
    return attempts[progress.attempt - 1] if 1 <= progress.attempt <= len(attempts) else None
