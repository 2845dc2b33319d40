"""Whether a trial is retried: how often its attempts ended by a cause, and its progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from regrow.search.events import Ended
from regrow.search.history.records import Attempt, TrialRecord
from regrow.search.space.smaller import smaller
from regrow.search.spec import Spec

_TOLD = frozenset({"preempted", "infrastructure"})
"""Causes whose limit is reported with the nodes. For the other causes the error of the user's code,
or where it hangs, is explanation enough.
"""


_SMALLER = (
    "try a smaller batch, as on_oom: {batch_size: 0.5} does, or fewer trials on a GPU"
    " (resources.gpu_memory)"
)


def progress(
    trial: TrialRecord, attempt: Attempt, event: Ended, *, closing: bool
) -> tuple[int, tuple[str, ...]]:
    """Return `furthest` and `evicted` of the trial once the attempt has ended.

    Not counted as preemptions here: the loss of a driver, attempts that end with a session that is
    `closing`, and attempts that never began.
    """
    if attempt.to_step > trial.furthest:
        return attempt.to_step, ()
    counts = (
        event.cause == "preempted"
        and event.by != "planner"
        and attempt.t_began is not None
        and not closing
    )
    return trial.furthest, (*trial.evicted, attempt.where or "") if counts else trial.evicted


def exhausted(
    spec: Spec,
    trial: TrialRecord,
    attempt: Attempt,
    cause: str,
    *,
    used: int,
    evicted: tuple[str, ...],
) -> str | None:
    """Return None if another attempt may follow the one that ends for `cause`, the `used`th; else
    the limit that was reached, in words, or "" if there is nothing to add. `evicted`: where the
    trial was preempted since its last new step.
    """
    retries = spec.retries
    shrinks = cause == "oom" and smaller(trial.config, spec.on_oom, spec.space) is not None
    if cause == "oom" and spec.on_oom and not shrinks:
        return f"{', '.join(spec.on_oom)} cannot become smaller (on_oom)"
    if cause == "preempted" and not retries.within(retries.no_progress, len(evicted)):
        many = f"{len(evicted)} attempts in a row were preempted without one step of progress"
        return f"{many}{_places(evicted)} (retries: no_progress: {retries.no_progress})"
    if retries.allows(cause, used, smaller=shrinks):
        return None
    if cause == "oom" and not spec.on_oom:
        return _SMALLER
    if used == 1 or cause not in _TOLD:
        return ""
    before = [one for one in trial.attempts[: attempt.number - 1] if one.cause == cause]
    places = _places(one.where or "" for one in [*before, attempt][-used:])
    return f"{used} of its attempts ended so{places} (retries: {cause}: {used - 1})"


def _places(nodes: Iterable[str]) -> str:
    """Return ', 4 on a, 2 on b', the most frequent first; empty if no node is known."""
    counts = Counter(nodes)
    if len(counts) == 1 and "" not in counts:
        return f", all on {next(iter(counts))}"
    return "".join(f", {count} on {node}" for node, count in counts.most_common() if node)
