"""Synchronous successive halving: the outcome of a rung is that of waiting until all of its trials
are known.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016, algorithm 1; it is the inner loop of HyperBand (Li et al., "Hyperband: A Novel
Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185), 2018, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from regrow.search import hyperband_plan
from regrow.search.options import check_whole
from regrow.search.schedulers.base import Candidate, Layout, Verdict
from regrow.search.schedulers.rungs import Bracket, Bracketed, check_brackets, rung_steps
from regrow.search.space.setting import Setting


class HalvingBracket(Bracket):
    """A bracket of `size` trials, of which max(1, size // eta**i) reach rung i, counted from 0.

    A trial continues or is retired as soon as its place is certain, whatever the others report that
    are still to come: the outcome is that of waiting for all. A trial that ends before a rung
    counts as the worst there, and its place is not filled again if it was promoted. A failed trial
    that is retried is compared with all that have reached the rung; trials that continued without
    waiting for it keep their places. Of equal values the one of the trial with the lower number is
    better.
    """

    def __init__(self, size: int, steps: Sequence[int], eta: int) -> None:
        super().__init__(steps, eta)
        self.size = size
        self.members = 0
        self.waiting = 0
        """How many trials are paused. A bracket without any is skipped."""
        self._heading: list[set[int]] = [set() for _ in range(len(steps) + 1)]
        """The trials on the way to rung i."""
        self._continued = [0] * len(steps)
        """How many trials continued from rung i."""

    @property
    def full(self) -> bool:
        return self.members == self.size

    def add(self, trial: int) -> None:
        """Add a trial."""
        self.members += 1
        self._heading[0].add(trial)

    def decide(self, trial: int, step: int, cost: float) -> Verdict:
        i = self.steps.index(step)
        rung, best = self.rungs[step], self._places(i, complete=False)
        place = rung.place((cost, trial, trial))
        others = self._outstanding(i, complete=False) - (trial in self._heading[i])
        why = f"place {place + 1} of {len(rung.reached) + 1} at rung {step}, {best} go on"
        if place >= best:
            return Verdict(action="stop", why=why)
        if place + others < best:
            return Verdict(until=self.following(step), why=why)
        return Verdict(action="pause", why=f"{why}; {others} may still come")

    def enter(self, trial: int, step: int, cost: float, verdict: Verdict) -> None:
        i = self.steps.index(step)
        self._heading[i].discard(trial)
        waits = verdict.action == "pause"
        self.rungs[step].enter((cost, trial, trial), waits=waits)
        self.waiting += waits
        if verdict.action in ("continue", "restart"):
            self._promoted(i, trial)

    def started(self, trial: int) -> None:
        for i, step in enumerate(self.steps):
            if self.rungs[step].leave(trial):
                self.waiting -= 1
                self._promoted(i, trial)

    def ended_or_retired(self, trial: int) -> None:
        for rung in self.rungs.values():
            self.waiting -= rung.leave(trial)
        for heading in self._heading:
            heading.discard(trial)

    def revived(self, trial: int, *, held: bool) -> None:
        super().revived(trial, held=held)
        self.waiting += held
        if not held:
            reached = (
                any(key[-1] == trial for key in rung.reached) for rung in self.rungs.values()
            )
            self._heading[sum(reached)].add(trial)

    def promotable(self, *, complete: bool) -> int | None:
        """Return the trial to promote, from the highest rung that has one."""
        for i, step in reversed(list(enumerate(self.steps))):
            rung = self.rungs[step]
            if rung.waiting:
                worse = rung.place(rung.waiting[0]) + self._outstanding(i, complete=complete)
                if worse < self._places(i, complete=complete):
                    return rung.waiting[0][-1]
        return None

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        """Return a paused trial that certainly will not continue, and why."""
        for i, step in enumerate(self.steps):
            rung, places = self.rungs[step], self._places(i, complete=complete)
            if rung.waiting and rung.place(rung.waiting[-1]) >= places:
                last = rung.waiting[-1]
                reason = f"place {rung.place(last) + 1} of {len(rung.reached)} at rung {step}"
                return last[-1], f"{reason}, {places} go on"
        return None

    def _promoted(self, i: int, trial: int) -> None:
        self._continued[i] += 1
        self._heading[i + 1].add(trial)

    def _places(self, i: int, *, complete: bool) -> int:
        """Return how many trials continue from rung i."""
        trials = self.members if complete else self.size
        return int(max(1, trials // self.eta ** (i + 1)))

    def _outstanding(self, i: int, *, complete: bool) -> int:
        """Return how many trials may still reach rung i."""
        if i == 0:
            return len(self._heading[0]) + (0 if complete else self.size - self.members)
        below = len(self.rungs[self.steps[i - 1]].waiting) + self._outstanding(
            i - 1, complete=complete
        )
        left = max(0, self._places(i - 1, complete=complete) - self._continued[i - 1])
        return len(self._heading[i]) + min(left, below)


class SuccessiveHalving(Bracketed):
    """Brackets of `n` trials, one after the other as long as trials come.

    Rungs are at grace_period * reduction_factor**i steps, below max_steps. The best n_i //
    reduction_factor (at least one) of the n_i trials of a rung continue when the others are known.
    `n` None: reduction_factor**k for k rungs, so that one trial gets max_steps. While a bracket
    waits, slots go to the trials of the next one. When no more trials come, a last bracket that
    isn't full is treated as one of as many trials as it has.
    """

    exact = True

    def __init__(
        self,
        setting: Setting,
        *,
        n: int | None = None,
        grace_period: int = 1,
        reduction_factor: int = 3,
        guard: bool | float | None = None,
    ) -> None:
        super().__init__(setting)
        self._eta = reduction_factor
        steps = rung_steps(setting.max_steps or 0, grace_period, reduction_factor)
        check_whole("n", n, 1, "27 is usual")
        self._plans = [(reduction_factor ** len(steps) if n is None else n, steps)]
        self.guard(steps, guard)
        self._brackets: list[HalvingBracket] = []
        self._bracket_by_trial: dict[int, HalvingBracket] = {}

    def added(self, candidate: Candidate) -> None:
        """Add the trial to the bracket that is being filled."""
        if not self._brackets or self._brackets[-1].full:
            size, steps = self._plans[len(self._brackets) % len(self._plans)]
            self._brackets.append(HalvingBracket(size, steps, self._eta))
        self._brackets[-1].add(candidate.trial)
        self._bracket_by_trial[candidate.trial] = self._brackets[-1]

    def bracket_of(self, trial: int) -> HalvingBracket:
        return self._bracket_by_trial[trial]

    def first_of_next(self, trial: int) -> int | None:
        """Return the first rung of the bracket that is being filled."""
        if self._brackets and not self._brackets[-1].full:
            return self._brackets[-1].following(0)
        _, steps = self._plans[len(self._brackets) % len(self._plans)]
        return steps[0] if steps else None

    def most_steps(self, trials: int) -> int | None:
        """Return the steps of its brackets; exact unless trials fail."""
        total, turn = 0, 0
        while trials > 0:
            size, steps = self._plans[turn % len(self._plans)]
            members, before = min(size, trials), 0
            for i, step in enumerate([*steps, self.setting.max_steps or 0]):
                total += (members if i == 0 else max(1, members // self._eta**i)) * (step - before)
                before = step
            trials, turn = trials - members, turn + 1
        return total

    def promote(self, *, complete: bool) -> int | None:
        """Return the trial to promote, from the oldest bracket that has one."""
        found = (
            bracket.promotable(complete=complete) for bracket in self._brackets if bracket.waiting
        )
        return next((trial for trial in found if trial is not None), None)

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        """Return a trial whose place is certainly too low, and why."""
        found = (
            bracket.surplus(complete=complete) for bracket in self._brackets if bracket.waiting
        )
        return next((pair for pair in found if pair is not None), None)


class Hyperband(SuccessiveHalving):
    """HyperBand: brackets of successive halving that trade the number of trials for the least steps
    of each. The brackets of the paper one after the other, starting again with the first as long as
    trials come.

    `grace_period`: least steps of a trial; there are as many brackets as halvings fit between it
    and `max_steps`. `reduction_factor` is the paper's eta. `brackets`: use only this many, those
    that start with the most trials; None for all.
    """

    layout: Layout = "brackets"

    def __init__(
        self,
        setting: Setting,
        *,
        grace_period: int = 1,
        reduction_factor: int = 3,
        brackets: int | None = None,
        guard: bool | float | None = None,
    ) -> None:
        check_whole("reduction_factor", reduction_factor, 2, "3 is usual")
        super().__init__(setting, grace_period=grace_period, reduction_factor=reduction_factor)
        planned = hyperband_plan.brackets(setting.max_steps or 1, reduction_factor, grace_period)
        check_brackets(brackets, len(planned))
        self._plans = [(plan[0][0], [step for _, step in plan[:-1]]) for plan in planned[:brackets]]
        self.guard([step for _, steps in self._plans for step in steps], guard)
