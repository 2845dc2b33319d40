"""How many slots an attempt gets: what its scheduler wants of it or, of a group of workers, what there is room for.

A group whose size is a range, `workers: [2, 4]`, gets as many as are free. Where these do not come, as somebody else has them, it
is withdrawn and goes on with as few as it may have; where the cluster has not so many any more, with as many as that has. Its
size is a decision of the log, and never changes while it runs.
"""

from __future__ import annotations

from regrow.search.durations import in_words
from regrow.search.history import Attempt, History, TrialRecord

SHRINK_SECONDS = 30.0
"""For so long a group waits for more workers than it must have."""


def has_room(history: History) -> bool:
    """Whether one more attempt may start, at the least width that it may have."""
    least, most = history.spec.resources.widths
    free = history.slots - history.occupied
    if least < most and history.spec.concurrency is not None and len(history.running) >= history.spec.concurrency:
        return False  # the slots are those of so many groups of the greatest width: narrow ones would be more at a time
    return free >= least


def widest(history: History) -> int:
    """How many slots one attempt may have at most."""
    resources = history.spec.resources if history.created is not None else None  # verify tells of a log without a beginning
    return min(history.widest, resources.widths[1]) if resources is not None and resources.grouped else history.widest


def width_of(history: History, trial: TrialRecord, wanted: int | None) -> int:
    """The slots of a trial's next attempt, which has room. `wanted`: by its scheduler, None where that has no say in it."""
    least, most = history.spec.resources.widths
    if trial.attempts and (last := trial.attempts[-1]).narrower and last.width <= widest(history):
        return least
    if wanted is None:
        wanted = most
    return max(least, min(wanted, history.slots - history.occupied, widest(history)))


def may_narrow(history: History, attempt: Attempt) -> bool:
    """Whether an attempt has not begun and is wider than it must be."""
    return attempt.t_began is None and history.spec.resources.grouped and attempt.width > history.spec.resources.widths[0]


def too_wide(history: History, attempt: Attempt) -> bool:
    """Whether one that may be narrower waits for more workers than the cluster has: a node has gone since it was started."""
    return may_narrow(history, attempt) and attempt.width > widest(history)


def why_narrower(history: History, attempt: Attempt, waited: float) -> str | None:
    """Why one that may is to wait for so many workers no longer, after so many seconds; None if it is to."""
    if too_wide(history, attempt):
        return f"there is no room for {attempt.width} workers any more, and it goes on with fewer"
    if waited < SHRINK_SECONDS:
        return None
    return f"it waited {in_words(waited)} for {attempt.width} workers, and goes on with fewer"
