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

from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.options import check_whole
from regrow.search.schedulers.base import Layout, Verdict
from regrow.search.schedulers.rungs import Bracket, Bracketed, Key, Rung, check_brackets, rung_steps
from regrow.search.space.setting import Setting


class Stopping(Bracket):
    """A bracket that stops trials. A trial continues at a rung if it is among the best max(1, n //
    eta) of the n that have reached it, itself included; a tie with the worst of these continues.
    """

    def decide(self, trial: int, step: int, cost: float) -> Verdict:
        rung = self.rungs[step]
        n = len(rung.reached) + 1
        place = rung.place((cost, -1, -1)) + 1
        best = max(1, n // self.eta)
        why = f"place {place} of {n} at rung {step}, {best} go on"
        if place > best:
            return Verdict(action="stop", why=why)
        return Verdict(until=self.following(step), why=why)

    def enter(self, trial: int, step: int, cost: float, verdict: Verdict) -> None:
        self.rungs[step].enter((cost, trial, trial), waits=False)

    def job(self, *, complete: bool) -> tuple[int, int] | None:
        """Return None: no trial is ever paused."""
        return None


class Promotion(Bracket):
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
        self.gone(trial)

    def gone(self, trial: int) -> None:
        for rung in self.rungs.values():
            rung.leave(trial)

    def job(self, *, complete: bool) -> tuple[int, int] | None:
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
    """

    def __init__(
        self,
        setting: Setting,
        *,
        grace_period: int = 1,
        reduction_factor: int = 3,
        type: str = "stopping",  # noqa: A002  # the option's name
        guard: bool = False,
    ) -> None:
        super().__init__(setting)
        steps = rung_steps(setting.max_steps or 0, grace_period, reduction_factor)
        if guard:
            self.guard(steps)
        self._brackets = [made(type, steps, reduction_factor)]

    def bracket_of(self, trial: int) -> Bracket:
        return self._brackets[0]

    def promote(self, *, complete: bool) -> int | None:
        """Return the promotable trial with the most steps."""
        jobs = [
            job for bracket in self._brackets if (job := bracket.job(complete=complete)) is not None
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
        guard: bool = False,
    ) -> None:
        steps = rung_steps(setting.max_steps or 0, grace_period, reduction_factor)
        check_brackets(brackets, len(steps) + 1)
        check_whole("eager", eager, 0, "write 0, or 12")
        super().__init__(
            setting, grace_period=grace_period, reduction_factor=reduction_factor, guard=guard
        )
        self._eager = eager
        count = len(steps) + 1 if brackets is None else brackets
        self._brackets = [made(type, steps[b:], reduction_factor) for b in range(count)]
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


def made(kind: str, steps: Sequence[int], eta: int) -> Stopping | Promotion:
    """Return a bracket of a `kind`. Raises SpecError for an unknown kind, naming the option."""
    if kind not in ("stopping", "promotion"):
        raise SpecError("type", kind, "is not known", "write stopping or promotion")
    return Stopping(steps, eta) if kind == "stopping" else Promotion(steps, eta)
