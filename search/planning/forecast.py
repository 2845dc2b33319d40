"""When an experiment will end, and what it will have cost, as far as its trials have shown.

The trials that are left are drawn from those seen, a few times over (a bootstrap): a running trial
makes as many steps as one of those that made more, each as long as its own so far. Trials that
still run have only shown how many steps they make at least: their share goes to the ones that made
more, and at last to whole trainings (Efron, "The two sample problem with censored data", 1967).
Each keeps its own pace, which it has shown although it has not ended: else only the quick ones
would have been seen, as a slow trial is more often one of those that still run (length-biased
sampling: Cox, "Some sampling problems in technology", 1969). The trials are placed one after the
other on the slots, so that the last ones, which run alone, count as well. Only experiments with a
number of trials have an end to forecast: others use their money or time up.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev, stdev

from regrow.search.chance import seed_for
from regrow.search.durations import on_clock
from regrow.search.history import History, TrialRecord, cost, waste
from regrow.search.numbers import money
from regrow.search.planning import budget, limits

LEAST = 5
"""Trials that must have ended."""
MOST_PLACED = 1_000
"""Pieces of work that are placed one by one."""
CHANGES = 2
"""Changes of machine that an experiment allows for: a loss, and the move to another kind."""
ENOUGH = 6
"""Trials that must have ended for their mean to tell how long others take."""
WITHIN = 0.8
"""The interval holds the outcome with this probability."""
DRAWS = 100
"""Outcomes that are drawn."""
MODEL = 0.15
"""Part of the time that is left by which a draw itself may be wrong (one standard deviation):
machines change, later trials differ from earlier ones.
"""
DOUBT = 0.1
"""Part of a step by which later ones may be longer, for `most_seconds`."""
LONGER = 1.1
"""A trial without `max_steps` takes so many times as long as the longest by now, at the most."""
MOST_DRAWN = 200
"""So many of the trials that ended last are drawn from, and so many are drawn: more that are left
count as longer ones.
"""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast, made at the time `t`. Times are in seconds since the epoch.

    Attributes:
        draws: possible ends, ascending.
        seen: trials from which they were drawn.
        paid: what has been spent by `t`; None without prices.
        per_hour: what an hour more costs.

    """

    t: float
    draws: Sequence[float]
    seen: int
    paid: float | None
    per_hour: float

    @property
    def ends(self) -> float:
        """The expected end: as likely before as after."""
        return self.draws[len(self.draws) // 2]

    @property
    def interval(self) -> tuple[float, float]:
        """The times between which it ends with a probability of WITHIN.

        The more of the draws lie between them, the fewer trials were seen: see `_outside`.
        """
        outside = max(1, round((len(self.draws) + 1) * _outside(self.seen)))
        return self.draws[outside - 1], self.draws[-outside]

    @property
    def money(self) -> float | None:
        """The expected cost in the end; None without prices."""
        return self._cost(self.ends)

    @property
    def costs(self) -> tuple[float, float] | None:
        """The costs between which it ends with a probability of WITHIN; None without prices."""
        first, last = (self._cost(end) for end in self.interval)
        return None if first is None or last is None else (first, last)

    def before(self, t: float) -> float:
        """Return the chance that it ends before `t`."""
        return sum(end <= t for end in self.draws) / len(self.draws)

    def _cost(self, end: float) -> float | None:
        return None if self.paid is None else self.paid + (end - self.t) / 3600.0 * self.per_hour


def of(history: History, now: float) -> Forecast | None:
    """Return the forecast at `now` (seconds since the epoch); None if nothing can be said."""
    ended = [trial for trial in history.trials if trial.state.final and trial.attempts]
    if history.unlimited or history.closed is not None or len(ended) < LEAST or not history.slots:
        return None
    later = [trial for trial in ended if trial.number >= history.slots]
    # Processes start beside the first ones. Of fewer the quickest would have ended.
    seen = later if len(later) >= max(LEAST, history.slots) else ended
    begun = _begun(history)
    records = [*seen[-MOST_DRAWN:], *begun]
    whole = history.spec.max_steps
    shown = [_shown(history, trial, now, steps=whole is not None) for trial in records]
    longest = max(one.steps for one in shown)
    most = LONGER * longest if whole is None else float(history.pace.reports(whole))
    left = history.total - history.ended - len(begun)
    wide = _usable_slots(history, history.slots)
    chance = random.Random(seed_for(history.spec.seed, history.ended, "forecast"))  # noqa: S311
    draws = sorted(now + _draw_duration(shown, most, left, wide, chance) for _ in range(DRAWS))
    rate = cost.per_hour(history)
    if history.occupied and not history.spending.per_hour:
        # It is paid by the attempt, and a slot may just be free.
        rate *= min(wide, len(begun) + left) / history.occupied
    return Forecast(
        t=now, draws=draws, seen=len(records), paid=cost.of(history, now).total, per_hour=rate
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a trial has shown: how far it came, in how many seconds, and whether that was its end.

    `steps`: its reports; its seconds where a whole training has no number of steps.
    """

    steps: float
    seconds: float
    ended: bool

    @property
    def pace(self) -> float:
        """Seconds of a step, one of which is half done in a trial that runs."""
        return self.seconds / (self.steps if self.ended else self.steps + 0.5)


def _shown(history: History, trial: TrialRecord, now: float, *, steps: bool) -> _Shown:
    seconds = _seconds_taken(history, trial, now)
    return _Shown(trial.step if steps else seconds, seconds, trial.state.final)


def _outside(seen: int) -> float:
    """Return the probability that a draw has to have below the interval, as that above it.

    What is drawn from a few trials differs less than what they were themselves drawn from: by the
    factor sqrt((n - 1) / n), and the spread of n is only estimated. So the percentiles are those
    that an interval of Student's t for n trials has in a normal distribution (Hesterberg, "What
    Teachers Should Know About the Bootstrap", The American Statistician 69(4), 2015: the expanded
    percentile interval).
    """
    freedom, z = seen - 1, _NORMAL.inv_cdf((1 + WITHIN) / 2)
    # Student's t: Abramowitz and Stegun, 26.7.5. 0.005 too small with 4 degrees of freedom.
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return _NORMAL.cdf(-t * math.sqrt(seen / freedom))


def _draw_duration(
    shown: Sequence[_Shown], most: float, left: int, wide: int, chance: random.Random
) -> float:
    """Return one possible duration of what is left, in seconds.

    Args:
        shown: the trials that have ended and those that run.
        most: reports of a whole training.
        left: how many have not begun.
        wide: slots.
        chance: random numbers.

    """
    again = sorted(chance.choices(shown, k=len(shown)), key=lambda one: one.steps)
    steps = [one.steps for one in again]
    paces = sorted(one.pace for one in again if one.steps) or [0.0]

    def end(by: float) -> float:
        """Return how many steps a trial makes that has made `by`."""
        while (place := bisect_right(steps, by)) < len(again):
            one = again[place + int(chance.random() * (len(again) - place))]
            if one.ended:
                return one.steps
            by = one.steps
        return most

    def more(one: _Shown) -> float:
        """Return for how many more seconds a trial runs that has come so far."""
        if one.ended:
            return 0.0
        pace = one.pace
        if not one.steps:  # it is no quicker than this
            slower = min(bisect_right(paces, one.seconds), len(paces) - 1)
            pace = paces[slower + int(chance.random() * (len(paces) - slower))]
        return max(0.0, end(one.steps) * pace - one.seconds)

    def new() -> float:
        """Return the seconds of a trial like one of those seen."""
        one = again[int(chance.random() * len(again))]
        return one.seconds + more(one)

    work = [more(one) for one in shown if not one.ended]
    each = max(1.0, left / MOST_DRAWN)
    work += [each * new() for _ in range(min(left, MOST_DRAWN))]
    wrong = math.exp(MODEL * _NORMAL.inv_cdf(max(1e-9, chance.random())))
    return max(_on_slots(work, 0, 0.0, wide)) * wrong


def most_seconds(history: History, now: float) -> float:
    """Return how long the trials that are left take at most on the slots that stay, and changes of
    machine beside; 0 if no step was seen yet.

    Of trials that a schedule may stop, the mean so far and twice its error count, once there are
    ENOUGH; but any one of them may be trained as a whole, also the last to begin.
    """
    if history.pace.step is None:
        return 0.0
    mean, doubt = _usual_seconds(history, now)
    wide = _usable_slots(history, history.slots - history.spot_slots)
    work, more = _remaining_work(history, mean + doubt)
    left = max(_on_slots(work, more, mean + doubt, wide))
    whole = _full_seconds(history)
    alone = max(_remaining_work(history, whole)[0], default=0.0)
    if more:
        alone = max(alone, min(_on_slots(work, more - 1, mean + doubt, wide)) + whole)
    return max(left, alone) + CHANGES * change_seconds(history)


def change_seconds(history: History) -> float:
    """Return how long a change of machine takes, in seconds: the steps since the last checkpoint
    are lost, and it starts elsewhere.
    """
    pace = history.pace
    step = pace.step or 0.0
    again = (history.spec.checkpoint.every_steps or 1) * step + (pace.save or 0.0)
    return limits.SLACK * (pace.begin + (pace.arrival or step) + again) + limits.LEAVE_SECONDS


def progress(history: History, now: float) -> float:
    """Return the part of the work that is done, from 0 to 1, as far as it can be foreseen."""
    if history.pace.step is None:
        return 0.0
    each, _ = _usual_seconds(history, now)
    work, more = _remaining_work(history, each)
    done = sum(_seconds_taken(history, trial, now) for trial in history.trials if trial.state.final)
    done += sum(each - left for left in work)
    return done / max(done + sum(work) + more * each, 1e-9)


def _full_seconds(history: History) -> float:
    """Return how long a trial takes that is trained to its end, in seconds."""
    pace = history.pace
    steps = pace.reports(history.spec.max_steps or 1)
    return (pace.arrival or pace.step or 0.0) + (steps - 1) * fmean(pace.steps or pace.first)


def _usual_seconds(history: History, now: float) -> tuple[float, float]:
    """Return how long a trial takes, in seconds, and by how much that may be too short."""
    pace, whole = history.pace, _full_seconds(history)
    every = pace.steps or pace.first
    # The steps of other trials may be slower: the fewer were seen, the more.
    seen = sum(1 for trial in history.trials if trial.step)
    steps = pace.reports(history.spec.max_steps or 1)
    doubt = steps * (2 * pstdev(every) / math.sqrt(max(1, seen)) + DOUBT * fmean(every))
    took = [_seconds_taken(history, t, now) for t in history.trials if t.state.final and t.attempts]
    if len(took) < ENOUGH:
        return whole, doubt
    mean, error = fmean(took), 2 * stdev(took) / math.sqrt(len(took))
    return (mean, error) if mean + error < whole + doubt else (whole, doubt)


def _remaining_work(history: History, whole: float) -> tuple[list[float], int]:
    """Return how long begun trials still take, each, and how many others are left."""
    begun = _begun(history)
    work = [whole * (1 - _share_done(history, trial, whole)) for trial in begun]
    return work, history.total - history.ended - len(begun)


def _begun(history: History) -> list[TrialRecord]:
    """Return the trials that have had an attempt and have not ended."""
    return [trial for trial in history.trials if not trial.state.final and trial.attempts]


def _usable_slots(history: History, slots: int) -> int:
    """Return how many of so many slots attempts may use at a time, at least one."""
    limit = history.spec.concurrency or slots
    return max(1, min(slots, limit * history.spec.resources.widths[1]))


def on_time(history: History, now: float) -> float | None:
    """Return the chance that all trials end before the limits of money and time; None if that
    cannot be said, or no limit is set.
    """
    limit = limits.nearest(history, now)
    if limit is None or limit.at == math.inf or (found := of(history, now)) is None:
        return None
    return found.before(limit.at)


def limits_text(history: History, now: float, *, alive: bool = True) -> str:
    """Return "12.3 of 30 trainings, 31.20 of 200.00 dollars, 4:10:00 of 9:00:00, on time with 97
    %"; "" without limits.

    `now`: seconds since the epoch. `alive`: whether a driver runs it.
    """
    stop = history.spec.stop
    if not history.spec.limited:
        return ""
    now = now if alive else history.t_last
    used = budget.used_text(history, now)
    found = [used] if used else []
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


def _share_done(history: History, trial: TrialRecord, whole: float) -> float:
    """Return the part of a trial that is done, from 0 to 1. `whole`: seconds of a trial."""
    if history.spec.max_steps is not None:
        return min(1.0, trial.curve.time / history.spec.max_steps)
    times = trial.curve.times
    return min(1.0, (times[-1] - trial.attempts[0].t_started) / whole) if times else 0.0


def _on_slots(work: Sequence[float], more: int, each: float, slots: int) -> list[float]:
    """Return by slot when some work has ended, one after the other on slots that are free: `work`
    in seconds, then `more` pieces of `each`.
    """
    rows = [0.0] * slots
    rounds = max(0, more - MOST_PLACED) // slots  # equal pieces fill all slots alike
    for seconds in [*work, *[each] * (more - rounds * slots)]:
        heapq.heapreplace(rows, rows[0] + seconds)
    return [row + rounds * each for row in rows]


def _seconds_taken(history: History, trial: TrialRecord, now: float) -> float:
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
