"""A budget of steps: which trials may begin, and which may continue past a decision.

Each trial that is to continue has a claim: the steps up to its next decision. A trial begins, or
continues, only if the claims of all leave room for its next ones, and for those with which the
better ones would reach `max_steps`. At most a part of the budget is kept for these, so that a small
budget does not begin with fewer trials than there are slots. As trials end early, what was kept for
them is free again. So the last trials that are better than the others are trained to their ends.
"""

from __future__ import annotations

import math

from regrow.search.history import History, TrialRecord
from regrow.search.history.pace import Work
from regrow.search.lifecycle import TrialState
from regrow.search.numbers import readable
from regrow.search.spec.parts import Training

KEPT_SHARE = 0.5
"""At most this share of a budget is kept for trials that may yet be trained to their ends."""
LEAST_SHARE = 0.5
"""A new trial begins only if there is room for at least this share of its steps: one that could not
get so far will hardly be the best.
"""
DIGITS = 3
"""Significant digits of the trainings that are used."""
_LIVE = (TrialState.PENDING, TrialState.RUNNING, TrialState.LOST, TrialState.PAUSED)


def may_begin(history: History, first_decision: int | None) -> bool:
    """Return whether the budget has room for a new trial. `first_decision`: the step of its first
    decision; None for none before its end.
    """
    budget, work = history.spec.budget_steps, history.work
    if budget is None or work is None:
        return True
    least = max(first_decision or work.whole, math.ceil(LEAST_SHARE * work.whole))
    return work.claimed + _kept(history, None, budget) + least <= budget


def may_continue(
    history: History, trial: TrialRecord, until: int | None, *, again: bool = False
) -> bool:
    """Return whether the budget has room for a trial.

    Args:
        history: of the experiment.
        trial: the trial.
        until: the step of its next decision; None for none before its end.
        again: whether this was decided before, and it is only to start again: then nothing is kept
            for better trials.

    """
    budget, work = history.spec.budget_steps, history.work
    if budget is None or work is None:
        return True
    others = work.claimed - work.claim(trial)
    kept = 0 if again else _kept(history, trial, budget)
    return others + kept + (until or work.whole) <= budget


def _kept(history: History, trial: TrialRecord | None, budget: int) -> int:
    """Return the steps that are kept for finishing the trials that are better than one, and for the
    best that is paused; None: of all trials.
    """
    work = history.work
    assert work is not None
    bound = (math.inf, math.inf) if trial is None else rank(history, trial)
    kept, held = 0, list[TrialRecord]()
    for state in _LIVE:
        for number in history.by_state[state]:
            one = history.trials[number]
            if one is trial or rank(history, one) >= bound:
                continue
            if one.held:
                held.append(one)
            else:
                kept += work.whole - min(work.whole, work.claim(one))
    if held:
        best = min(held, key=lambda one: rank(history, one))
        kept += work.whole - min(work.whole, work.claim(best))
    return min(kept, math.floor(KEPT_SHARE * budget))


def rank(history: History, trial: TrialRecord) -> tuple[float, float]:
    """Return the sort key of a trial, of which less is better."""
    best = trial.curve.best
    return (math.inf if best is None else history.objective.sign * best[0], trial.number)


def describe(given: Training) -> str:
    """Return a budget for people: "30 trainings", "800 steps", "4 hours"."""
    unit, amount = next((key, value) for key, value in given if value is not None)
    many = f"{amount:,}" if unit == "steps" else f"{amount:,.10g}"
    return f"{many} {unit if amount != 1 else unit.removesuffix('s')}"


def larger(given: Training) -> str:
    """Return half as much again, as users write it in a shell."""
    if given.trainings is not None:
        return f"{math.ceil(1.5 * given.trainings)}"
    if given.steps is not None:
        return f"'{{steps: {math.ceil(1.5 * given.steps)}}}'"
    return f"'{{hours: {1.5 * _whole(given):g}}}'"


def used_text(history: History, now: float, given: Training | None = None) -> str:
    """Return how much is used, for people: "12.3 of 30 trainings"; "" without a budget.

    Args:
        history: of the experiment.
        now: seconds since the epoch.
        given: the budget; None: that of the specification.

    """
    given = given or history.spec.budget
    if given is None:
        return ""
    amount = used(history, given, now)
    many = f"{amount:,.0f}" if given.steps is not None else readable(amount, DIGITS)
    return f"{many} of {describe(given)}"


def used(history: History, given: Training, now: float) -> float:
    """Return how much of a budget is used by `now` (seconds since the epoch), in its own unit. A
    step that was done again after a loss counts once.
    """
    if given.hours is not None:
        return history.elapsed(now) / 3600.0
    work, whole = history.work, history.spec.max_steps or 1
    if work is None:
        work = Work.of(history.trials, whole)
    return float(work.used) if given.steps is not None else work.used / whole


def share(history: History, given: Training, now: float) -> float:
    """Return the share of a budget that is used by `now` (seconds since the epoch)."""
    return used(history, given, now) / _whole(given)


def _whole(given: Training) -> float:
    return next(float(value) for _, value in given if value is not None)
