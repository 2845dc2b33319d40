"""When an experiment will end, and what it will have cost, as far as its trials have shown.

The work that is left is the mean slot-time of a trial times the trials that are left, without what
running ones have done. Its spread is that of the trials seen, as a sum of independent ones, and the
uncertainty of their mean. Only experiments with a number of trials have an end to forecast: others
use their money or time up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from regrow.search.durations import on_clock
from regrow.search.history import History, TrialRecord, cost, waste
from regrow.search.numbers import money
from regrow.search.planning import limits

LEAST = 3
"""Trials that must have ended."""
WITHIN = 0.8
"""The interval holds the outcome with this probability."""
MODEL = 0.05
"""Part of the time that is left by which the forecast itself may be wrong (one standard deviation):
machines change, later trials differ from earlier ones.
"""
_Z = NormalDist().inv_cdf(0.5 + WITHIN / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast, made at the time `t`. Times are in seconds since the epoch.

    Attributes:
        ends: the expected end.
        spread: the standard deviation of the end, in seconds.
        money: the expected cost in the end; None without prices.
        per_hour: what an hour more costs.

    """

    t: float
    ends: float
    spread: float
    money: float | None
    per_hour: float

    @property
    def interval(self) -> tuple[float, float]:
        """The times between which it ends with a probability of WITHIN."""
        return max(self.t, self.ends - _Z * self.spread), self.ends + _Z * self.spread

    @property
    def paid(self) -> tuple[float, float] | None:
        """The costs between which it ends with a probability of WITHIN; None without prices."""
        if self.money is None:
            return None
        first, last = ((end - self.ends) / 3600.0 * self.per_hour for end in self.interval)
        return self.money + first, self.money + last

    def before(self, t: float) -> float:
        """Return the chance that it ends before `t`."""
        if self.spread == 0:
            return float(self.ends <= t)
        return NormalDist(self.ends, self.spread).cdf(t)


def of(history: History, now: float) -> Forecast | None:
    """Return the forecast at `now` (seconds since the epoch); None if nothing can be said."""
    ended = [trial for trial in history.trials if trial.state.final and trial.attempts]
    if history.unlimited or history.closed is not None or len(ended) < LEAST or not history.slots:
        return None
    later = [trial for trial in ended if trial.number >= history.slots]
    # Processes start beside the first ones. Of fewer the quickest would have ended.
    seen = later if len(later) >= max(LEAST, history.slots) else ended
    took = [_taken(history, trial, now) for trial in seen]
    mean, spread = fmean(took), stdev(took)
    left = history.total - history.ended
    begun = sum(_taken(history, trial, now) for trial in history.trials if not trial.state.final)
    work = max(left * mean - begun, 0.1 * left * mean)
    limit = history.spec.concurrency or history.slots
    wide = max(1, min(history.slots, limit * history.spec.resources.widths[1], left))
    # The last ones do not run beside others: on average half a trial with each slot but one.
    seconds = work / wide + mean / 2 * (1 - 1 / wide) * bool(left)
    own = spread * math.sqrt(left) / wide
    of_mean = spread / math.sqrt(len(took)) * left / wide
    doubt = math.hypot(own, of_mean, MODEL * seconds)
    rate = cost.per_hour(history)
    if history.occupied and not history.spending.per_hour:
        rate *= wide / history.occupied  # it is paid by the attempt, and a slot may just be free
    paid = cost.of(history, now).total
    return Forecast(
        t=now,
        ends=now + seconds,
        spread=doubt,
        money=None if paid is None else paid + seconds / 3600.0 * rate,
        per_hour=rate,
    )


def on_time(history: History, now: float) -> float | None:
    """Return the chance that all trials end before the limits of money and time; None if that
    cannot be said, or no limit is set.
    """
    if not history.spec.stop.limited or (found := of(history, now)) is None:
        return None
    limit = limits.nearest(history, now)
    return None if limit is None else found.before(limit.at)


def standing(history: History, now: float, *, alive: bool = True) -> str:
    """Return "31.20 of 200.00 dollars, 4:10:00 of 9:00:00, on time with 97 %"; "" without limits.

    `now`: seconds since the epoch. `alive`: whether a driver runs it.
    """
    stop = history.spec.stop
    if not stop.limited:
        return ""
    now = now if alive else history.t_last
    found = []
    if stop.dollars is not None:
        found.append(f"{money(limits.spent(history, now))} of {money(stop.dollars)} dollars")
    if (end := limits.deadline(history)) is not None:
        whole = on_clock(end - history.t_created)
        if history.closed is None:
            found.append(f"{on_clock(max(0.0, now - history.t_created))} of {whole}")
        else:
            found.append(f"{on_clock(max(0.0, end - history.t_last))} before the deadline")
    if alive and (chance := on_time(history, now)) is not None:
        found.append(f"on time with {100 * chance:.0f} %")
    if lost := waste.money(history):
        found.append(f"{money(lost)} wasted on losses")
    return ", ".join(found)


def _taken(history: History, trial: TrialRecord, now: float) -> float:
    """Return the slot-seconds of a trial's attempts. Until it began, an attempt counts as long as
    usual: a session's first ones take longer, as their processes start.
    """
    usual = history.pace.begin
    return sum(
        a.slot_seconds(now)
        + min(usual, (now if a.t_began is None else a.t_began) - a.t_started) * a.width
        for a in trial.attempts
        if not a.withdrawn
    )
