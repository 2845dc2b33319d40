"""How many slots an attempt gets: what its scheduler asks for or, for a group of workers, what is
free.

A group whose size is a range, `workers: [2, 4]`, gets as many workers as are free. If other
attempts occupy them for too long, the attempt is withdrawn and the trial continues with the fewest
workers allowed. If the cluster has become too small, it continues with as many as the cluster has.
The size is a decision in the log, and never changes while the attempt runs.
"""

from __future__ import annotations

from regrow.search.durations import in_words
from regrow.search.history import Attempt, History, TrialRecord

SHRINK_SECONDS = 30.0
"""How long a group waits for more workers than its minimum."""


def has_room(history: History) -> bool:
    """Return whether one more attempt may start, at its smallest width."""
    least, most = history.spec.resources.widths
    free = history.slots - history.occupied
    limit = history.spec.concurrency
    if least < most and limit is not None and len(history.running) >= limit:
        return False  # the slots are those of so many widest groups; narrow ones would be more
    return free >= least


def widest(history: History) -> int:
    """Return the most slots that one attempt may have."""
    # a log without its first event, which `verify` reports
    if history.created is None or not history.spec.resources.grouped:
        return history.widest
    return min(history.widest, history.spec.resources.widths[1])


def width_of(history: History, trial: TrialRecord, wanted: int | None) -> int:
    """Return the slots of a trial's next attempt. `wanted`: the scheduler's choice, or None."""
    least, most = history.spec.resources.widths
    if trial.attempts and (last := trial.attempts[-1]).narrower and last.width <= widest(history):
        return least
    if wanted is None:
        wanted = most
    return max(least, min(wanted, history.slots - history.occupied, widest(history)))


def may_narrow(history: History, attempt: Attempt) -> bool:
    """Return whether an attempt has not begun and is wider than its minimum."""
    return (
        attempt.t_began is None
        and history.spec.resources.grouped
        and attempt.width > history.spec.resources.widths[0]
    )


def too_wide(history: History, attempt: Attempt) -> bool:
    """Return whether an attempt that may be narrower waits for more workers than the cluster has,
    because a node went away since it was started.
    """
    return may_narrow(history, attempt) and attempt.width > widest(history)


def why_narrower(history: History, attempt: Attempt, waited: float) -> str | None:
    """Return why a group is to stop waiting for its workers, None if it is to wait on."""
    if too_wide(history, attempt):
        return f"there is no room for {attempt.width} workers any more, and it goes on with fewer"
    if waited < SHRINK_SECONDS:
        return None
    return f"it waited {in_words(waited)} for {attempt.width} workers, and goes on with fewer"
