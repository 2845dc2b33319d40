"""The ledger of wasted work: what losses cost, by class of failure, for a trial and for an
experiment.

Pure functions of the history. A step counts as wasted once a later attempt has begun to do it
again. Wasted seconds are those of an attempt on its node from the last step that still counts until
its end (or until it was found to be gone).
"""

from __future__ import annotations

from dataclasses import dataclass

from regrow.search.history import History, TrialRecord

CLASSES = ("preempted", "infrastructure", "stalled", "error", "oom", "checkpoint")
"""The classes of the retry budgets. In addition "checkpoint": an attempt that ended normally was
repeated because its checkpoint was unusable.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Wasted work.

    Attributes:
        attempts: attempts that were cut off.
        steps: steps that were repeated.
        seconds: seconds on a node without a result, times the slots on it.
        money: cost of these seconds, as far as there was a price when the attempts began.

    """

    attempts: int = 0
    steps: int = 0
    seconds: float = 0.0
    money: float = 0.0

    def __add__(self, other: Waste) -> Waste:
        return Waste(
            attempts=self.attempts + other.attempts,
            steps=self.steps + other.steps,
            seconds=self.seconds + other.seconds,
            money=self.money + other.money,
        )

    def __bool__(self) -> bool:
        return bool(self.attempts or self.steps)


def of_trial(trial: TrialRecord) -> dict[str, Waste]:
    """Return what the attempts of a trial wasted, by class; classes without waste are left out."""
    found: dict[str, Waste] = {}
    for attempt in trial.attempts:
        if attempt.cause or attempt.superseded:
            money = attempt.wasted_s * (attempt.price or 0.0) / 3600.0
            one = Waste(
                attempts=int(bool(attempt.cause)),
                steps=attempt.superseded,
                seconds=attempt.wasted_s,
                money=money,
            )
            kind = attempt.cause or "checkpoint"
            found[kind] = found.get(kind, Waste()) + one
    return found


def of_all(history: History) -> dict[str, Waste]:
    """Return the same for a whole experiment, in the order of CLASSES."""
    totals: dict[str, Waste] = {}
    for trial in history.trials:
        for kind, one in of_trial(trial).items():
            totals[kind] = totals.get(kind, Waste()) + one
    return {kind: totals[kind] for kind in CLASSES if kind in totals}


def money(history: History) -> float | None:
    """Return the cost of all waste, None if there is no price."""
    priced = any(price is not None for price in history.slot_seconds)
    return sum(one.money for one in of_all(history).values()) if priced else None
