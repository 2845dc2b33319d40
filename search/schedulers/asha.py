"""ASHA: asynchronous successive halving, which never waits for a rung to fill.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, section 3 and
algorithm 2 (`type: promotion`, where trials pause at a rung and the best continue later). The
stopping variant (a trial is stopped instead of paused, so that it can never be promoted later) is
that of its section 4.2 and of Ray Tune. Rungs are at grace_period * reduction_factor**k steps,
below max_steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.options import check_whole
from regrow.search.schedulers.base import Layout, Verdict
from regrow.search.schedulers.rungs import Bracket, Bracketed, Key, Rung, check_brackets, rung_steps
from regrow.search.space.setting import Setting

LATER: Final = 9
"""A trial is judged again after one part in so many of a rung's steps, at least after one step."""


class StoppingBracket(Bracket):
    """A bracket that stops trials. A trial continues at a rung if it is among the best max(1, n //
    eta) of the n that have reached it, itself included; a tie with the worst of these continues.

    `last`: the last step; with it, trials that continued are judged once more soon after each rung,
    by their place among all that have reached the rung by then. None: they are not.
    """

    def __init__(self, steps: Sequence[int], eta: int, last: int | None = None) -> None:
        super().__init__(steps, eta)
        self._rechecks: dict[int, int] = {}
        """By step at which trials are judged again, the rung."""
        if last is not None:
            self._rechecks = {
                again: step
                for step, above in zip(self.steps, [*self.steps[1:], last], strict=False)
                if (again := step + max(1, round(step / LATER))) < above
            }
        self._due = sorted([*self.steps, *self._rechecks])

    def following(self, after: int) -> int | None:
        return next((step for step in self._due if step > after), None)

    def is_recheck(self, step: int) -> bool:
        return step in self._rechecks

    def decide(self, trial: int, step: int, cost: float) -> Verdict:
        rung = self.rungs[step]
        n = len(rung.reached) + 1
        return self._verdict(step, f"rung {step}", rung.place((cost, -1, -1)), n, 1)

    def decide_recheck(self, trial: int, step: int, least: int) -> Verdict:
        at = self._rechecks[step]
        rung = self.rungs[at]
        key = rung.reached_by(trial)
        if key is None:
            return Verdict(until=self.following(step))
        place = rung.place((key[0], -1, -1))
        return self._verdict(step, f"rung {at} by now", place, len(rung.reached), least)

    def _verdict(self, step: int, where: str, place: int, n: int, least: int) -> Verdict:
        """Return the verdict on a trial that is at a place, from 0, among n."""
        best = max(least, n // self.eta)
        why = f"place {place + 1} of {n} at {where}, {best} go on"
        if place >= best:
            return Verdict(action="stop", why=why)
        return Verdict(until=self.following(step), why=why)

    def enter(self, trial: int, step: int, cost: float, verdict: Verdict) -> None:
        if step in self.rungs:
            self.rungs[step].enter((cost, trial, trial), waits=False)

    def next_promotion(self, *, complete: bool) -> tuple[int, int] | None:
        """Return None: no trial is ever paused."""
        return None


class PromotionBracket(Bracket):
    """A bracket that pauses trials at each rung.

    The next job is the best paused trial of the highest rung in which it is among the best n // eta
    of the n that have reached it (algorithm 2, get_job). Of equal values the one that came first is
    better.
    """

    def __init__(self, steps: Sequence[int], eta: int) -> None:
        super().__init__(steps, eta)
        self.open = list(steps)
        """The rungs from which trials are promoted."""
        self._arrivals = 0

    def decide(self, trial: int, step: int, cost: float) -> Verdict:
        if step not in self.open:
            return Verdict(action="pause", why=f"rung {step} is the highest so far")
        rung = self.rungs[step]
        key: Key = (cost, self._arrivals, trial)
        place, n = rung.place(key), len(rung.reached) + 1
        best = n // self.eta
        why = f"place {place + 1} of {n} at rung {step}, {best} go on"
        higher = [s for s in self.open if s > step]
        next_here = not rung.waiting or key < rung.waiting[0]
        if place < best and next_here and self._next(higher, complete=False) is None:
            return Verdict(until=self.following(step), why=why)
        return Verdict(action="pause", why=why)

    def enter(self, trial: int, step: int, cost: float, verdict: Verdict) -> None:
        self.rungs[step].enter((cost, self._arrivals, trial), waits=verdict.action == "pause")
        self._arrivals += 1

    def started(self, trial: int) -> None:
        self.ended_or_retired(trial)

    def ended_or_retired(self, trial: int) -> None:
        for rung in self.rungs.values():
            rung.leave(trial)

    def next_promotion(self, *, complete: bool) -> tuple[int, int] | None:
        """Return rung and number of the trial to promote next, None for none. With `complete`, a
        rung promotes at least its best trial.
        """
        return self._next(self.open, complete=complete)

    def _next(self, steps: Sequence[int], *, complete: bool) -> tuple[int, int] | None:
        for step in reversed(steps):
            rung: Rung = self.rungs[step]
            best = max(int(complete), len(rung.reached) // self.eta)
            if rung.waiting and rung.place(rung.waiting[0]) < best:
                return step, rung.waiting[0][-1]
        return None


class Asha(Bracketed):
    """Stops (or pauses) a trial at a rung unless it is among the best 1/reduction_factor there.

    `grace_period`: steps before the first decision. `reduction_factor`: an integer from 2. `type`:
    "stopping" or "promotion". A decision is one bisection in the rung's sorted values.

    Where the paper is silent: see the two brackets. With "promotion" a trial that would itself be
    the next job of the slot that it frees continues without a pause, which is equivalent to
    algorithm 2. When no new trials come, the best trial of a rung continues even if the rung is
    smaller than reduction_factor, so that one trial reaches max_steps.

    `recheck`: a trial that "stopping" let continue is judged once more soon after the rung. The
    first to reach a rung continue whatever they are worth; where several workers reach it at about
    the same time, the rest shows at once which of them were worth it.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        grace_period: int = 1,
        reduction_factor: int = 3,
        type: str = "stopping",  # noqa: A002  # the option's name
        guard: bool | float | None = None,
        recheck: bool = False,
    ) -> None:
        super().__init__(setting)
        steps = rung_steps(setting.max_steps or 0, grace_period, reduction_factor)
        self.guard(steps, guard)
        last = setting.max_steps if recheck else None
        self._brackets = [make_bracket(type, steps, reduction_factor, last)]

    def bracket_of(self, trial: int) -> Bracket:
        return self._brackets[0]

    def promote(self, *, complete: bool) -> int | None:
        """Return the promotable trial with the most steps."""
        jobs = [
            job
            for bracket in self._brackets
            if (job := bracket.next_promotion(complete=complete)) is not None
        ]
        return max(jobs, key=lambda job: job[0])[1] if jobs else None


class AsyncHyperband(Asha):
    """Asynchronous HyperBand (section 3.3; the option `brackets` of Ray Tune's ASHAScheduler):
    several brackets of ASHA.

    A trial belongs to a bracket b, which is ASHA with a grace period of grace_period *
    reduction_factor**b.

    The bracket is drawn by a hash of the experiment's seed and the trial's number. Probabilities
    are proportional to the numbers of trials that HyperBand starts in each bracket (ceil((s_max +
    1) / (s + 1) * eta**s), s halvings), so that each bracket gets about the same share of all
    steps.

    `brackets`: how many, those with the smallest grace periods; None for all, the last of which
    stops nothing. `eager`: how many of the first trials are all in the first bracket, because their
    values are known soonest there. `type` and the other options are those of "asha".
    """

    layout: Layout = "brackets"

    def __init__(
        self,
        setting: Setting,
        *,
        grace_period: int = 1,
        reduction_factor: int = 3,
        brackets: int | None = None,
        eager: int = 0,
        type: str = "stopping",  # noqa: A002  # the option's name
        guard: bool | float | None = None,
        recheck: bool = False,
    ) -> None:
        steps = rung_steps(setting.max_steps or 0, grace_period, reduction_factor)
        check_brackets(brackets, len(steps) + 1)
        check_whole("eager", eager, 0, "write 0, or 12")
        super().__init__(
            setting, grace_period=grace_period, reduction_factor=reduction_factor, guard=guard
        )
        self._eager = eager
        count = len(steps) + 1 if brackets is None else brackets
        last = setting.max_steps if recheck else None
        self._brackets = [
            make_bracket(type, steps[b:], reduction_factor, last) for b in range(count)
        ]
        starts = [
            -(-(len(steps) + 1) * reduction_factor ** (s := len(steps) - b) // (s + 1))
            for b in range(count)
        ]
        self._bounds = [bound / sum(starts) for bound in accumulate(starts)]

    def bracket_of(self, trial: int) -> Bracket:
        if trial < self._eager:
            return self._brackets[0]
        u = uniform_draw(self.setting.seed, f"bracket:{trial}")
        return self._brackets[bisect_right(self._bounds, u)]


def make_bracket(
    kind: str, steps: Sequence[int], eta: int, last: int | None = None
) -> StoppingBracket | PromotionBracket:
    """Return a bracket of a `kind`. `last`: the last step, if trials that continue are judged again
    soon after each rung. Raises SpecError, naming the option, for an unknown kind, and for one that
    judges no trial again.
    """
    if kind not in ("stopping", "promotion"):
        raise SpecError("type", kind, "is not known", "write stopping or promotion")
    if kind == "stopping":
        return StoppingBracket(steps, eta, last)
    if last is not None:
        raise SpecError("recheck", True, "goes with type: stopping alone", "leave it out")
    return PromotionBracket(steps, eta)
