"""What an experiment has cost so far, as pure functions of its history."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.search.history import History, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of an experiment.

    Attributes:
        hours: for which attempts had their slots, times their number.
        money: in the currency of the nodes' prices and of `price_per_hour`; None if there is no
            price.

    """

    hours: float
    money: float | None


def of(history: History, now: float) -> Cost:
    """Return the cost of all attempts; running ones count until `now` (seconds since the epoch).

    The price of an attempt is its share of its nodes' prices, else the specification's price when
    it began, else the specification's price now.
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
    """Return the cost of a trial's attempts by `now`, as far as priced; None if none is."""
    found = [paid for attempt in trial.attempts if (paid := attempt.cost_at(now)) is not None]
    return round(sum(found), 9) if found else None


def prices(history: History) -> str:
    """Return the prices of a slot and hour of the attempts, for people: '0.5 to 0.75'."""
    running = (history.trials[number].attempts[-1].price for number in history.running)
    every = (*history.slot_seconds, *running, history.spec.price_per_hour)
    found = [price for price in every if price is not None]
    return " to ".join(f"{price:g}" for price in sorted({min(found), max(found)}))


def steps(history: History) -> int:
    """Return the number of steps that were done, repeated ones included."""
    return sum(trial.step for trial in history.trials) + history.lost_steps
