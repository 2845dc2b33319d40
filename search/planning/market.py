"""On which kind of machine a trial's next attempt runs, when it changes to the other, and how long
an attempt waits for a machine.

With a deadline this is Uniform Progress: Wu et al., "Can't Be Late: Optimizing Spot Instance
Savings under Deadlines", NSDI 2024, section 4, for many trials instead of one job. Spot machines
are used as long as there are any. Without one, an attempt waits as long as the experiment is ahead
of uniform progress towards the deadline, and takes an on-demand machine once it is behind. As soon
as the work that is left takes all the time that is left, everything asks for on-demand machines.

An attempt leaves its on-demand machine for a spot machine once the experiment is ahead by the time
of two such changes (the hysteresis of that section). Whether there are spot machines is tried by
one attempt; others follow when it has found one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from regrow.search.durations import in_words
from regrow.search.history import Attempt, History, TrialRecord
from regrow.search.lifecycle import AttemptState
from regrow.search.planning import forecast, limits
from regrow.search.planning.widths import SHRINK_SECONDS, may_narrow, too_wide
from regrow.search.spec.moments import epoch

Market = Literal["", "spot", "on-demand"]
"""Values of Ray's label "ray.io/market-type"; empty: any."""
BACK = 6.0
"""A trial stays with the other kind of machine for this many times `after`, unless an attempt
begins on a machine of the first kind in the meantime.
"""
PATIENCE_SHARE, LEAST_PATIENCE, MOST_PATIENCE = 0.01, 10.0, 600.0
"""With a deadline and without `after`, an attempt waits for a spot machine this share of the time
to the deadline, in seconds not less and not more, before it counts as unmet.
"""
WITHDRAW_SECONDS = 10.0
"""Seconds that an attempt may still wait to begin when the session is ending."""


def patience(history: History) -> float | None:
    """Return the seconds that an attempt waits for its kind of machine; None: without end."""
    wish = history.spec.market
    if wish is None or wish.after is not None:
        return None if wish is None else wish.after
    if (end := deadline(history)) is None:
        return None
    share = PATIENCE_SHARE * (end - history.t_created)
    return round(min(max(share, LEAST_PATIENCE), MOST_PATIENCE), 3)


def deadline(history: History) -> float | None:
    """Return when all trials are to have ended, seconds since the epoch; None: no such time."""
    wish = history.spec.market
    if wish is None or wish.first != "spot":
        return None
    if wish.deadline is not None:
        return limits.saved_by(history, epoch(wish.deadline, history.t_created))
    end = None if history.unlimited else limits.deadline(history)
    return None if end is None else limits.saved_by(history, end)


def change_due(history: History, now: float) -> float | None:
    """Return when attempts that wait for spot machines are to ask for on-demand ones; None: never,
    or no deadline is set.
    """
    if (end := deadline(history)) is None or not history.total:
        return None
    behind = history.t_created + forecast.progress(history, now) * (end - history.t_created)
    return min(behind, end - forecast.most_seconds(history, now))


def no_time_for_spot(history: History, now: float) -> bool:
    """Return whether the deadline leaves no time to wait for spot machines any more."""
    end = deadline(history)
    return end is not None and now + forecast.most_seconds(history, now) >= end


def next_market(history: History, trial: TrialRecord, now: float) -> Market:
    """Return the kind of machine that the trial's next attempt asks for."""
    wish = history.spec.market
    if wish is None:
        return ""
    evicted = wish.evictions is not None and trial.evictions >= wish.evictions
    home: Market = "on-demand" if evicted or no_time_for_spot(history, now) else wish.first
    if trial.unmet_market is None or trial.unmet_market[0] != home:
        return home
    _, since = trial.unmet_market
    found = history.found.get(home, 0.0) > since
    waits = patience(history)
    later = waits is not None and now >= since + BACK * waits
    return home if found or later else "spot" if home == "on-demand" else "on-demand"


def next_to_leave(history: History, now: float) -> tuple[TrialRecord, str] | None:
    """Return a trial whose attempt is to leave its on-demand machine for a spot machine, and why;
    None for none.
    """
    if history.closing is not None or deadline(history) is None:
        return None
    current = [history.trials[number] for number in sorted(history.running)]
    staying = [trial for trial in current if _may_leave(history, trial, now)]
    if not staying or _runs_late(history, now):
        return None
    tried = any(_tries_spot(trial.attempts[-1]) for trial in current)
    for trial in staying:
        if not tried or history.found.get("spot", 0.0) > (trial.attempts[-1].t_began or 0.0):
            return trial, "it continues on a spot machine: there is time to spare"
    return None


def _tries_spot(attempt: Attempt) -> bool:
    """Return whether an attempt waits for a spot machine, or is about to leave its machine."""
    return attempt.leave is not None or (attempt.market == "spot" and attempt.t_began is None)


def _may_leave(history: History, trial: TrialRecord, now: float) -> bool:
    """Return whether an attempt runs on a machine other than a spot one and has reported there, its
    trial has a checkpoint, and the next attempt would ask for a spot machine.
    """
    attempt = trial.attempts[-1]
    return (
        attempt.state is AttemptState.RUNNING
        and attempt.market != "spot"
        and attempt.to_step > attempt.from_step
        and bool(trial.checkpoints)
        and next_market(history, trial, now) == "spot"
    )


def _runs_late(history: History, now: float) -> bool:
    """Return whether two changes of machine would bring the experiment behind."""
    change = change_due(history, now)
    return change is None or now + 2 * forecast.change_seconds(history) >= change


def waiting_long(
    history: History, waits: Callable[[int, int], float]
) -> list[tuple[int, int, float]]:
    """Return attempts that have waited so long for a machine that the planner may withdraw them,
    each once: (trial, number, seconds).

    `waits`: returns for how long an attempt has waited.
    """
    least, most = history.spec.resources.widths
    found: list[tuple[int, int, float]] = []
    # Seconds after which a waiting attempt may be withdrawn; None: never.
    usual = patience(history)
    if history.closing is not None:
        usual = WITHDRAW_SECONDS
    for number in sorted(history.running) if usual is not None or least < most else ():
        a = history.trials[number].attempt
        if a is None or a.t_began is not None or a.waited:
            continue
        longest = SHRINK_SECONDS if history.closing is None and may_narrow(history, a) else usual
        if history.closing is None and too_wide(history, a):
            longest = 0.0
        if longest is not None and (waited := waits(number, a.number)) >= longest:
            found.append((number, a.number, round(waited, 3)))
    return found


def why_withdrawn(history: History, market: str, waited: float, now: float) -> str | None:
    """Return why an attempt is to stop waiting for a machine, None if it is to wait on."""
    if history.closing is not None:
        return f"it waited {in_words(waited)} for {kind(market)}, and the experiment is ending"
    waits = patience(history)
    if waits is None or waited < waits:
        return None
    change = change_due(history, now) if market == "spot" else None
    if change is not None and now < change:
        return None
    why = "" if change is None else ", and the deadline comes nearer"
    return f"it waited {in_words(waited)} for {kind(market)}{why}"


def kind(market: str) -> str:
    """Return a name for a machine of this market, for people."""
    return {"spot": "a spot machine", "on-demand": "an on-demand machine"}.get(market, "a machine")
