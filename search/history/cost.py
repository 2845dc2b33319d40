"""What an experiment cost so far: time on slots, money, steps. Pure functions of the history."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.search.history import History, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Hours for which attempts had their slots, times their number, and what that cost, in the currency of the nodes' prices and
    of `price_per_hour` (None: there is no price).
    """

    hours: float
    money: float | None


def of(history: History, now: float) -> Cost:
    """Of all attempts; `now` (seconds since the epoch) is where those that run end for this purpose.

    Each has its part of the price that its node told, else the price that the specification had when it began, or, if that had
    none, the one that it has now.
    """
    seconds = history.slot_seconds.copy()
    for number in history.running:
        attempt = history.trials[number].attempts[-1]
        seconds[attempt.price] += attempt.slot_seconds(now)
    present = history.spec.price_per_hour
    prices = {price: present if price is None else price for price in (*seconds, present)}
    paid = [seconds[price] * each / 3600.0 for price, each in prices.items() if each is not None]
    return Cost(hours=sum(seconds.values()) / 3600.0, money=sum(paid) if paid else None)


def of_trial(trial: TrialRecord, now: float) -> float | None:
    """What the attempts of a trial have cost by `now`, those that had a price; None where none had."""
    found = [paid for attempt in trial.attempts if (paid := attempt.cost_at(now)) is not None]
    return round(sum(found), 9) if found else None


def prices(history: History) -> str:
    """The prices of a slot and hour that attempts had, for people: '0.5', or '0.5 to 0.75'."""
    running = (history.trials[number].attempts[-1].price for number in history.running)
    found = [price for price in (*history.slot_seconds, *running, history.spec.price_per_hour) if price is not None]
    return " to ".join(f"{price:g}" for price in sorted({min(found), max(found)}))


def steps(history: History) -> int:
    """Steps that were done, those that were done again included."""
    return sum(trial.step for trial in history.trials) + history.lost_steps
