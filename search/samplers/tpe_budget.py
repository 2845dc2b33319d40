"""Selects the good trials if some are ended early: the best ones at the largest budget that enough
trials reached.

Optuna prefers trials that ran to their end, whatever they reached. Under a scheduler that stops
most trials these are nearly all of the good ones, and the model collapses onto the first survivor.
Here values are compared at one budget, as in BOHB (Falkner, Klein and Hutter, ICML 2018, section
3.2 and algorithm 2). Optuna is not used here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from regrow.search.mode import Mode
from regrow.search.samplers.base import Result
from regrow.search.samplers.tpe_history import DONE, Floats, Rows, TpeHistory, best
from regrow.search.space.domains import Json

GOOD: Final = 0.15
"""Fraction of the trials at the budget that are good, as in BOHB; at most `MOST`, as in Optuna."""
MOST: Final = 25


class BudgetHistory(TpeHistory):
    """A history that compares trials at one budget, which is a step.

    A trial's value at a budget is its best up to that step. A done trial also has its value at
    every step after its end, and at every step if it has no curve. `enough`: how many trials make a
    budget; all if there are fewer.
    """

    def __init__(
        self, coordinate: Mapping[str, Callable[[Json], float]], mode: Mode, enough: int
    ) -> None:
        super().__init__(coordinate, mode)
        self._enough = max(enough, 1)
        self._curve: dict[int, tuple[list[int], list[float]]] = {}
        """By trial: the steps at which it improved, and its loss since then."""
        self._budget = math.inf
        self._there: dict[int, float] = {}
        """By trial: its loss at `_budget`, for trials that were needed so far."""

    def tell(self, result: Result, shared: Mapping[str, float]) -> bool:
        """See `TpeHistory.tell`."""
        counts = super().tell(result, shared)
        if counts:
            steps, losses, least = [], [], math.inf
            for step, value in sorted(result.intermediate):
                if self._sign * value < least:
                    least = self._sign * value
                    steps.append(step)
                    losses.append(least)
            self._curve[result.number] = steps, losses
            self._there.pop(result.number, None)
        return counts

    def early(self) -> bool:
        """Return whether a trial was ended early, so that there is more than one budget."""
        return bool((self._rank[self._learnt()] != DONE).any())

    def split(self, n_below: int, *, liar: bool, number: int) -> tuple[Rows, Rows]:
        """Return the good trials, and all others including those that did not reach the budget;
        each by number.

        If no trial was ended early the result is Optuna's: the best `n_below`.
        """
        if not self.early():
            return super().split(n_below, liar=liar, number=number)
        learnt = np.flatnonzero(self._learnt())
        reach = np.where(self._rank[learnt] == DONE, math.inf, self._step[learnt])
        place = max(len(reach) - self._enough, 0)
        budget = float(np.partition(reach, place)[place])
        there = learnt[reach >= budget]
        losses = self._losses(there, budget)
        count = min(math.ceil(GOOD * len(there)), MOST)
        return self._with_others(
            there[best(np.arange(len(there)), count, losses)], liar=liar, number=number
        )

    def _losses(self, trials: Rows, budget: float) -> Floats:
        """Return the losses at a budget."""
        if budget == math.inf:
            return np.asarray(self._loss[trials])
        if budget != self._budget:
            self._budget, self._there = budget, {}
        known = self._there
        for number in trials.tolist():
            if number not in known:
                known[number] = self._loss_at(number, budget)
        return np.array([known[number] for number in trials.tolist()])

    def _loss_at(self, number: int, budget: float) -> float:
        steps, losses = self._curve[number]
        place = bisect_right(steps, budget)
        if place:
            return losses[place - 1]
        return float(self._loss[number]) if self._rank[number] == DONE and not steps else math.inf
