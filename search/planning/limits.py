"""The limits of an experiment, `budget`, `stop.dollars` and `stop.deadline`: when everything has to
be saved so that they hold, and what may still begin before.

A budget of steps is kept by which trials begin and continue: see `budget.py`. The other limits are
a moment: that of the deadline, that at which the budget's hours are over, and that at which the
money ends if the cluster costs what it costs now. Before the nearest one all running trials are
asked to save and leave, early enough for the longest step and checkpoint that are under way. A
trial begins only if it reaches its next checkpoint before, a new one only if it reaches its first
rung. Towards the end, the paused trials that are best come before new ones: Liaw et al.,
"HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline", SoCC 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from regrow.search.durations import in_words as span
from regrow.search.events import Milestone
from regrow.search.history import Attempt, History, TrialRecord, cost
from regrow.search.lifecycle import TrialState
from regrow.search.numbers import money
from regrow.search.planning import budget
from regrow.search.spec.moments import epoch

FINISH_SECONDS, FINISH_SHARE = 30.0, 0.1
"""Seconds before a deadline that are kept for the results of the session, at least: this many, and
at most this share of the whole time. The report came 2 s after the last trial at a load of 9 on two
cores, 31 s at a load of 35: what a rehearsal took is kept where it was longer.
"""
LEAVE_SECONDS = 2.0
"""Seconds until an attempt knows that it has to leave, and has left."""
SAVE_SECONDS = 5.0
"""Supposed duration of a checkpoint, until one was measured."""
SLACK = 1.25
"""Steps and checkpoints may take this many times as long as those before, until ENOUGH_STEPS have
shown by how much steps differ.
"""
ENOUGH_STEPS = 19
"""The longest of so many steps is exceeded by the next one with a probability of 1 in 20."""
LATE_SHARE = 0.5
"""The end begins at the latest, if it is shorter than a whole trial, after this share."""

LATER_SECONDS = 1800.0
"""Seconds until a further deadline that is proposed, at least."""
NEARLY = 0.5
"""A limit of which at least this share is used is soon used up in a further session."""
MILESTONES = (25, 50, 80)
"""Percent of a limit whose use is recorded, with a forecast."""
RECENT = 8
"""The first rungs of the last so many trials show that of the next."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One of the limits.

    Attributes:
        at: when all attempts must have ended, seconds since the epoch; inf: not by a moment.
        key: `budget`, `stop.dollars` or `stop.deadline`.
        share: share of the limit that is used, 0 to 1.

    """

    at: float
    key: str
    share: float


class Reason(NamedTuple):
    """Why a session ends, or nothing begins. `limit`: `budget`, `stop.dollars` or
    `stop.deadline`.
    """

    limit: str
    why: str


def deadline(history: History) -> float | None:
    """Return the deadline in seconds since the epoch, None for none."""
    moment = history.spec.stop.deadline
    return None if moment is None else epoch(moment, history.t_created)


def spent(history: History, now: float) -> float:
    """Return what has been spent by `now`, the rest of the cluster included."""
    return cost.of(history, now).total or 0.0


def nearest(
    history: History, now: float, *, more: float = 0.0, saves: int | None = None
) -> Limit | None:
    """Return the nearest limit, None if none is set.

    Args:
        history: of the experiment.
        now: seconds since the epoch.
        more: what the cluster costs an hour beyond the present.
        saves: checkpoints that attempts still load or save, for which money is kept as the store
            may cost some; None: one for each running attempt.

    """
    found = every(history, now, more=more, saves=saves)
    return min(found, key=lambda one: one.at, default=None)


def every(
    history: History, now: float, *, more: float = 0.0, saves: int | None = None
) -> list[Limit]:
    """Return all limits; `more` and `saves` as for `nearest`."""
    saves = len(history.running) if saves is None else saves
    stop, found = history.spec.stop, []
    if (given := history.spec.budget) is not None:
        at = float("inf")
        if given.hours is not None:
            at = now + max(0.0, given.hours * 3600.0 - history.elapsed(now))
        found.append(Limit(at, "budget", budget.share(history, given, now)))
    if (end := deadline(history)) is not None:
        whole = end - history.t_created
        share = (now - history.t_created) / whole if whole > 0 else 1.0
        found.append(Limit(saved_by(history, end), "stop.deadline", share))
    if stop.dollars is not None:
        paid, rate = spent(history, now), cost.per_hour(history) + more
        left = max(0.0, stop.dollars - paid - cost.of_requests(history, saves))
        at = now if left == 0 else now + left / rate * 3600.0 if rate > 0 else float("inf")
        found.append(Limit(at, "stop.dollars", paid / stop.dollars))
    return found


def saved_by(history: History, end: float) -> float:
    """Return when all attempts must have ended for a deadline, seconds since the epoch as it is, so
    that the report is there in time: see `rehearses`.
    """
    whole = max(0.0, end - history.t_created)
    kept = min(FINISH_SECONDS, FINISH_SHARE * whole)
    if (tried := history.pace.rehearsal) is not None:
        kept = max(kept, min(SLACK * tried.seconds + LEAVE_SECONDS, LATE_SHARE * whole))
    return end - kept


def rehearses(history: History, now: float, before: float | None) -> bool:
    """Return whether the recorder is to make the report now, to learn how long that takes: in the
    first half of the time to a deadline, and again in the second, when there is more to report and
    if it is short beside the time that is left.

    `before`: when this recorder did that last, seconds since the epoch; None: never.
    """
    if (end := deadline(history)) is None or history.closing is not None or not history.trials:
        return False
    half = history.t_created + LATE_SHARE * (end - history.t_created)
    if now < half:
        return before is None
    tried = history.pace.rehearsal
    short = tried is not None and tried.seconds <= FINISH_SHARE * (end - now)
    return short and (before is None or before < half)


def describe(history: History) -> str:
    """Return the limits for people: "200.00 dollars, until Fri 2026-12-04 08:00 CET"; "" for
    none. The time is that of this machine's zone.
    """
    found = [] if history.spec.budget is None else [budget.describe(history.spec.budget)]
    if (dollars := history.spec.stop.dollars) is not None:
        found.append(f"{money(dollars)} dollars")
    if (end := deadline(history)) is not None:
        local = datetime.fromtimestamp(end).astimezone()
        found.append(f"until {local:%a %Y-%m-%d %H:%M:%S %Z}".replace(":00 ", " "))
    return ", ".join(found)


def share(history: History, now: float) -> float:
    """Return how much of the limit that is used the most is used, from 0 to 1; 0 without limits."""
    if history.created is None or not history.spec.limited:
        return 0.0
    used = [limit.share for limit in every(history, now)]
    return min(1.0, max(used, default=0.0))


def further(history: History) -> list[tuple[str, str]]:
    """Return a larger value, as users write it, for the limit that ended the last session, and for
    the other one if it is nearly used up.
    """
    closing, found = history.closing, list[tuple[str, str]]()
    if closing is None or not closing.limit or closing.status == "failed":
        return []  # or a node has no price: more money does not help
    for limit in every(history, history.t_last):
        if limit.key != closing.limit and limit.share < NEARLY:
            continue
        if limit.key == "budget" and history.spec.budget is not None:
            found.append((limit.key, budget.larger(history.spec.budget)))
        elif limit.key == "stop.dollars":
            found.append((limit.key, f"{1.5 * (history.spec.stop.dollars or 0.0):g}"))
        else:
            whole = (deadline(history) or 0.0) - history.t_created
            later = history.t_last + max(0.5 * whole, LATER_SECONDS)
            minute = datetime.fromtimestamp(60 * math.ceil(later / 60)).astimezone()
            found.append((limit.key, minute.isoformat(timespec="minutes")))
    return found


def milestone(history: History, now: float) -> tuple[str, int] | None:
    """Return the limit and the percent of it that are used, if that is not in the log; None if
    nothing is due.
    """
    for limit in every(history, now):
        before = [one.percent for one in history.milestones if one.limit == limit.key]
        passed = [percent for percent in MILESTONES if 100 * limit.share >= percent]
        if passed and passed[-1] > max(before, default=0):
            return limit.key, passed[-1]
    return None


def in_words(history: History, event: Milestone) -> str:
    """Return a milestone for people: "50 % of the money is spent: 10.02 of 20.00 dollars"."""
    stop = history.spec.stop
    if event.limit == "budget":
        return f"{event.percent} % of the budget is used: {budget.used_text(history, event.t)}"
    if event.limit == "stop.dollars":
        return (
            f"{event.percent} % of the money is spent: {money(event.spent or 0.0)} of"
            f" {money(stop.dollars or 0.0)} dollars"
        )
    return f"{event.percent} % of the time is over: {_until(history, event.t)}"


def leave_seconds(history: History) -> float:
    """Return how long the running attempts need to save at their next step and leave."""
    usual = history.pace.arrival or 0.0
    longest = 0.0
    for number in history.running:
        attempt = history.trials[number].attempts[-1]
        if attempt.t_began is not None:
            step = attempt.step_seconds or usual
            save = SLACK * _save_seconds(history, attempt)
            longest = max(longest, _step_slack(history) * step + save)
    return longest + LEAVE_SECONDS if history.running else 0.0


def _step_slack(history: History) -> float:
    """Return how many times as long as its attempt's longest so far a step may take, from 1 to
    SLACK.

    It is the largest multiple of the last n steps. Whatever their distribution, the next one
    exceeds it with a probability of 1 / (n + 1), as long as their order is a matter of chance
    (conformal prediction: Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World",
    Springer 2005).
    """
    excess = history.pace.excess
    return SLACK if len(excess) < ENOUGH_STEPS else min(SLACK, max(1.0, *excess))


def over(history: History, now: float) -> Reason | None:
    """Return why all trials have to save now, None if they need not."""
    limit = nearest(history, now)
    if limit is None or now + leave_seconds(history) < limit.at:
        return None
    return Reason(limit.key, _words(history, limit, now))


def due(history: History, now: float) -> float | None:
    """Return from when on `over` or `overdue` hold if nothing happens before; None: never."""
    limit = nearest(history, now, saves=None if history.closing is None else 0)
    if limit is None or limit.at == float("inf"):
        return None
    if history.closing is not None:
        return limit.at if history.closing.limit and history.running else None
    return limit.at - leave_seconds(history)


def overdue(history: History, now: float) -> bool:
    """Return whether a limit is reached although all trials were asked to save before: what still
    runs is to be ended.
    """
    if history.closing is None or not history.closing.limit or not history.running:
        return False
    limit = nearest(history, now, saves=0)
    return limit is not None and now >= limit.at


def is_late(history: History, now: float, first_decision: int | None) -> bool:
    """Return whether a new trial could not be trained as a whole any more, or the rest of the
    budget is kept for the best. `first_decision`: the step of its first decision; None for none.
    """
    if not budget.may_begin(history, first_decision):
        return True
    limit = _with_one_more(history, now)
    if limit is None:
        return False
    whole = _seconds(history, None, history.spec.max_steps or 1)
    return limit.share >= LATE_SHARE and now + whole > limit.at


def why_not(history: History, trial: TrialRecord, until: int | None, now: float) -> Reason | None:
    """Return why an attempt of a trial may not begin; None if it may.

    `until`: the step of its first decision; None for none before its end.
    """
    again = bool(trial.attempts) and not trial.held
    if not budget.may_continue(history, trial, until, again=again):
        return Reason("budget", _used_up(history, now))
    steps = 1  # it saves at any step at which it is asked to leave
    if not trial.step:
        steps = until or history.spec.max_steps or 1
    return _too_late(history, trial, steps, now)


def why_no_new(
    history: History, now: float, first_decision: int | None, *, for_best: bool = False
) -> Reason | None:
    """Return why no new trial may be proposed; None if one may.

    Args:
        history: of the experiment.
        now: seconds since the epoch.
        first_decision: the step of its first decision; None for none before its end.
        for_best: whether the end of the time belongs to the best, as that of the money does.

    """
    if not budget.may_begin(history, first_decision):
        return Reason("budget", _used_up(history, now))
    whole = history.spec.max_steps or 1
    begun = (
        trial.attempts[0].first or whole for trial in history.trials[-RECENT:] if trial.attempts
    )
    steps = min(begun, default=1)
    given = history.spec.budget
    meant = for_best or history.spec.stop.dollars is not None
    meant |= given is not None and given.hours is not None
    if meant and is_late(history, now, first_decision):
        steps = whole  # the money, and the budget, are for the best
    return _too_late(history, None, steps, now)


def _too_late(history: History, trial: TrialRecord | None, steps: int, now: float) -> Reason | None:
    limit = _with_one_more(history, now)
    if limit is None or now + _seconds(history, trial, steps) <= limit.at:
        return None
    what = "a new trial" if trial is None else f"trial {trial.number}"
    left = {"stop.deadline": "time", "stop.dollars": "money"}.get(limit.key, limit.key)
    return Reason(limit.key, f"{what} could not reach a result with the {left} that is left")


def _seconds(history: History, trial: TrialRecord | None, steps: int) -> float:
    """Return how long an attempt needs for so many steps, as far as known, and to save and leave.
    Only the latter if no step was seen yet. The first step and the checkpoint may be slow; more
    steps take their mean, as a trial that does not get so far has saved.
    """
    pace = history.pace
    if pace.step is None:
        return LEAVE_SECONDS
    own = (
        next((a.step_seconds for a in reversed(trial.attempts) if a.step_seconds), 0.0)
        if trial
        else 0.0
    )
    step = own or pace.step
    first = pace.begin + max(pace.arrival or 0.0, step)
    save = _usual_save(history)
    return SLACK * (first + save) + (pace.reports(steps) - 1) * step + LEAVE_SECONDS


def _save_seconds(history: History, attempt: Attempt) -> float:
    return attempt.save_seconds or _usual_save(history)


def _usual_save(history: History) -> float:
    """Return the usual duration of a checkpoint; 0 if trials have ended and none saved one."""
    if history.pace.save is not None:
        return history.pace.save
    return 0.0 if history.by_state[TrialState.DONE] else SAVE_SECONDS


def _with_one_more(history: History, now: float) -> Limit | None:
    """Return the nearest limit if one more attempt begins, which loads a checkpoint and saves one:
    it costs something beyond the nodes that are there if these have no price.
    """
    usual = (history.spec.price_per_hour or 0.0) * history.spec.resources.widths[0]
    more = 0.0 if history.spending.per_hour else usual
    return nearest(history, now, more=more, saves=len(history.running) + 2)


def why_not_kept(history: History) -> Reason | None:
    """Return the problem if money is limited and an attempt runs on a node without a price; None if
    there is none.
    """
    if history.spec.stop.dollars is None or history.spec.price_per_hour is not None:
        return None
    for number in sorted(history.running):
        attempt = history.trials[number].attempts[-1]
        if attempt.t_began is not None and attempt.price is None:
            return Reason(
                "stop.dollars",
                f"stop.dollars cannot be kept: the node {attempt.node} has no price; give"
                " price_per_hour, or the label regrow.io/price",
            )
    return None


def _used_up(history: History, now: float) -> str:
    return f"the budget is used: {budget.used_text(history, now)}"


def _words(history: History, limit: Limit, now: float) -> str:
    if limit.key == "budget":
        return f"{_used_up(history, now)}, and all had to save before"
    if limit.key == "stop.dollars":
        paid, cap = money(spent(history, now)), money(history.spec.stop.dollars or 0.0)
        rest = ", and what runs needs the rest to save" if history.running else ""
        return f"{paid} of {cap} dollars are spent{rest}"
    left = (deadline(history) or now) - now
    if left <= 0:
        return "the deadline is over"
    return f"the deadline was {span(left)} away, and all had to save before"


def _until(history: History, now: float) -> str:
    left = (deadline(history) or now) - now
    return f"the deadline is in {span(left)}" if left > 0 else "the deadline is over"
