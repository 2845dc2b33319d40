"""What an experiment cost so far: time on slots, money, steps. Pure functions of the history."""

from __future__ import annotations

from regrow.search.history import Attempt, History


def of_attempt(attempt: Attempt, now: float) -> float:
    """Seconds for which it had its slots, times their number; from its beginning on a node until it ended, or until `now`
    (seconds since the epoch). 0 where it never began.
    """
    if attempt.t_began is None:
        return 0.0
    ended = attempt.t_ended if attempt.t_ended is not None else now
    return max(0.0, ended - attempt.t_began) * attempt.width  # clocks of machines differ


def slot_hours(history: History, now: float) -> float:
    """Of all attempts; `now` (seconds since the epoch) is where those that run end for this purpose."""
    return sum(of_attempt(attempt, now) for trial in history.trials for attempt in trial.attempts) / 3600.0


def money(history: History, hours: float) -> float | None:
    """What so many slot-hours cost, in the currency of `price_per_hour`; None where there is no price."""
    per_hour = history.spec.price_per_hour
    return None if per_hour is None else hours * per_hour


def steps(history: History) -> int:
    """Steps that were done, those that were done again included."""
    return sum(trial.step for trial in history.trials) + history.lost_steps
