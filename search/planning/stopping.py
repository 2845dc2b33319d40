"""The conditions of `stop:` for an experiment. For a single trial see `endings.py`."""

from __future__ import annotations

from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.search.spec.parts import Stop


def holding(stop: Stop, history: History, now: float) -> list[tuple[str, float | None]]:
    """Return the key of each condition that holds at `now`, with its value; None for a condition
    that cannot be raised, only removed.
    """
    plateau = None if stop.plateau is None else stop.plateau.trials
    failures = stop.failures if isinstance(stop.failures, int) else None
    conditions: list[tuple[str, float | None, Stop]] = [
        ("stop.target", None, Stop(target=stop.target)),
        ("stop.hours", stop.hours, Stop(hours=stop.hours)),
        ("stop.trials", stop.trials, Stop(trials=stop.trials)),
        ("stop.failures", failures, Stop(failures=failures)),
        ("stop.plateau.trials", plateau, Stop(plateau=stop.plateau)),
        ("stop.all", None, Stop(all=stop.all)),
    ]
    return [
        (key, value)
        for key, value, alone in conditions
        if why_enough(alone, history, now) is not None
    ]


def why_failed(stop: Stop, history: History) -> str | None:
    """Return why too many trials have failed, None if `stop.failures` allows them."""
    failed = history.by_state[TrialState.FAILED] - set(history.revivable)
    if not isinstance(stop.failures, int) or len(failed) < stop.failures:
        return None
    first = history.trials[min(failed)]
    reason = f"trial {first.number} failed: {first.attempts[-1].message}"
    return reason if stop.failures == 1 else f"{len(failed)} trials failed; {reason}"


def why_enough(stop: Stop, history: History, now: float) -> str | None:
    """Return why a condition holds at time `now` (seconds since the epoch), None if none does."""
    best, sign = history.leader.best if history.leader is not None else None, history.objective.sign
    if stop.target is not None and best is not None and sign * best[0] <= sign * stop.target:
        return f"the target {stop.target:g} was reached"
    if stop.hours is not None and history.elapsed(now) >= stop.hours * 3600:
        return f"{stop.hours:g} hours are over"
    if (
        stop.plateau is not None
        and stop.plateau.trials is not None
        and history.since_best >= stop.plateau.trials
    ):
        return f"{history.since_best} trials ended without a better value"
    if stop.trials is not None and history.ended >= stop.trials:
        return f"{history.ended} trials have ended"
    if why := why_failed(stop, history):
        return why
    each = [why_enough(inner, history, now) for inner in stop.all]
    return " and ".join(map(str, each)) if each and None not in each else None
