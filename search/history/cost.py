"""What an experiment has cost so far, as pure functions of its history."""

from __future__ import annotations

from dataclasses import dataclass, field

from regrow.search.history import History, TrialRecord
from regrow.search.measured import Traffic

LEAST_SECONDS = 60.0
"""The store's mean cost is over so many seconds at least: a session begins with many requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of an experiment. Money is in the currency of the nodes' prices and of `price_per_hour`.

    Attributes:
        hours: for which attempts had their slots, times their number.
        money: of the attempts; None if there is no price.
        rest: of the nodes while no attempt used them: the head, idle machines, idle parts.
        store: of the requests to the store of the state, and the bytes that it sent.
        traffic: these requests and bytes, as far as counted.

    """

    hours: float
    money: float | None
    rest: float = 0.0
    store: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def total(self) -> float | None:
        """Of attempts, the rest of the cluster and the store; None if there is no price."""
        beside = self.rest + self.store
        return None if self.money is None and not beside else (self.money or 0.0) + beside


def of(history: History, now: float) -> Cost:
    """Return the cost of all attempts; running ones count until `now` (seconds since the epoch).

    The price of an attempt is its share of its nodes' prices, else the specification's price when
    it began, else the specification's price now.
    """
    seconds, apart = history.slot_seconds.copy(), history.spending.apart.copy()
    for number in history.running:
        attempt = history.trials[number].attempts[-1]
        taken = attempt.slot_seconds(now)
        seconds[attempt.price] += taken
        if attempt.node_price is None:
            apart[attempt.price] += taken
    present = history.spec.price_per_hour
    prices = {price: present if price is None else price for price in (*seconds, present)}
    paid = [seconds[price] * each / 3600.0 for price, each in prices.items() if each is not None]
    money = sum(paid) if paid else None
    unlabelled = sum(apart[price] * (prices[price] or 0.0) for price in [*apart]) / 3600.0
    rest = max(0.0, history.spending.of_nodes(now) + unlabelled - (money or 0.0))
    return Cost(
        hours=sum(seconds.values()) / 3600.0,
        money=money,
        rest=rest,
        store=history.spending.store,
        traffic=history.spending.traffic,
    )


def per_hour(history: History) -> float:
    """Return what the experiment costs an hour at present: its nodes with a price, attempts on
    other ones, and the store at its mean so far. An attempt on its way counts as one on a node
    without a price, if no node has one.
    """
    usual, nodes = history.spec.price_per_hour or 0.0, history.spending.per_hour
    labelled = apart = 0.0
    for number in history.running:
        attempt = history.trials[number].attempts[-1]
        if attempt.node_price is not None:
            labelled += (attempt.price or 0.0) * attempt.width
        elif attempt.t_began is not None or not nodes:
            apart += (usual if attempt.price is None else attempt.price) * attempt.width
    return apart + max(labelled, nodes) + _store_per_hour(history)


def _store_per_hour(history: History) -> float:
    seconds = max(history.elapsed(), LEAST_SECONDS)
    return history.spending.store / seconds * 3600.0


def of_requests(history: History, attempts: int) -> float:
    """Return what the store may cost for so many attempts to load or save a checkpoint: the dearest
    one that was seen lately, for each.
    """
    return attempts * max(history.spending.asked, default=0.0)


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
