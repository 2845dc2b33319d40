"""The results for TPE, as columns of numbers by trial. No Optuna and no decision here: only the
data and its order.

Row n of each column is trial n, so the order in which results arrived makes no difference. A
proposal reads whole columns; with Optuna's trial objects, 10,000 trials take 60 ms of attribute
look-ups for each proposal.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from regrow.search.mode import Mode, sign_of
from regrow.search.samplers.base import Result
from regrow.search.space.domains import Json

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

# The order decides which of two results of a trial counts: an end over running, a real end over
# a failure.
_UNTOLD, _RUNNING, _PAUSED, _FAILED, _STOPPED, DONE = range(6)
_RANK: Final = {
    "running": _RUNNING,
    "paused": _PAUSED,
    "failed": _FAILED,
    "stopped": _STOPPED,
    "done": DONE,
}
GOOD: Final = 0.15
"""Fraction of the trials at the budget that are good, as in BOHB; at most `MOST`, as in Optuna."""
MOST: Final = 25
_NO_STEP: Final = -1.0  # a stopped trial without intermediate values is ordered after all others


class TpeHistory:
    """Results by trial number; memory is proportional to the largest number.

    `coordinate` maps each modelled parameter to the function from its value to the number that TPE
    uses.
    """

    def __init__(self, coordinate: Mapping[str, Callable[[Json], float]], mode: Mode) -> None:
        self._coordinate = coordinate
        self._sign = sign_of(mode)
        self._rank = np.zeros(0, dtype=np.int8)
        self._loss = np.zeros(0)  # the value, negated where more is better
        self._step = np.zeros(0)  # step of the value, for stopped trials
        # NaN where the parameter is not active
        self._column = {name: np.zeros(0) for name in coordinate}
        self._revived: dict[int, int] = {}
        """By trial, how often it was retried after a failure; only trials that were."""
        self._with: dict[frozenset[str], set[int]] = {}
        """Trials with a usable result, by the parameters that were active in them."""

    def tell(self, result: Result, shared: Mapping[str, float]) -> bool:
        """Add a result. Returns whether it counts: a more informative result of the trial may have
        been added before.

        `shared` has the coordinates that its proposal drew, also of inactive parameters.

        Raises ValueError for a second, different end of the same trial, unless it was retried
        between them, and for a value outside of its domain.
        """
        rank, loss, step = self._end(result)
        number = result.number
        self._make_room(number)
        if (fresh := result.revived - self._revived.get(number, 0)) < 0:
            return False
        if fresh:  # a retry invalidates the trial's earlier result
            self._revived[number], self._rank[number] = result.revived, _UNTOLD
            for numbers in self._with.values():
                numbers.discard(number)
        before = self._rank[number]
        if before >= _STOPPED and rank >= _STOPPED:
            if (before, self._loss[number], self._step[number]) != (rank, loss, step):
                raise ValueError(f"trial {number} ended before, in another way")
            return False
        if rank < before or (rank == before == _PAUSED and step < self._step[number]):
            return False
        row = {
            name: self._coordinate[name](v)
            for name, v in result.config.items()
            if name in self._coordinate
        }
        names = frozenset(row)
        if rank >= _STOPPED or rank == _PAUSED:
            self._with.setdefault(names, set()).add(number)
        elif before == _PAUSED and names in self._with:  # the paused trial has failed since
            self._with[names].discard(number)
        if rank == _RUNNING:
            row = {**shared, **row}
        for name, column in self._column.items():
            column[number] = row.get(name, math.nan)
        self._rank[number], self._loss[number], self._step[number] = rank, loss, step
        return True

    def ended(self) -> int:
        """Return how many trials have a usable result: done, stopped, or paused."""
        return int(np.count_nonzero(self._learnt()))

    def activities(self) -> Iterable[frozenset[str]]:
        """Return the sets of parameters active together in usable results, oldest first."""
        first = {names: min(numbers) for names, numbers in self._with.items() if numbers}
        return sorted(first, key=lambda names: first[names])

    def _learnt(self) -> npt.NDArray[np.bool_]:
        learnt: npt.NDArray[np.bool_] = (self._rank >= _STOPPED) | (self._rank == _PAUSED)
        return learnt

    def split(self, n_below: int, *, liar: bool, number: int) -> tuple[Rows, Rows]:
        """Return the best `n_below` of the trials that ended, and all others; each by number.

        The better of two done trials has the smaller loss, of two stopped ones the larger step and
        then the smaller loss; done is better than stopped; ties go to the smaller number (Optuna's
        `_split_trials`). A paused trial counts as a stopped one while it is paused. With `liar` the
        running trials, except for `number`, are among the others.
        """
        below = best(np.flatnonzero(self._rank == DONE), n_below, self._loss)
        if len(below) < n_below:
            stopped = np.flatnonzero((self._rank == _STOPPED) | (self._rank == _PAUSED))
            order = np.lexsort((self._loss[stopped], -self._step[stopped]))
            below = np.concatenate([below, stopped[order[: n_below - len(below)]]])
        return self._with_others(below, liar=liar, number=number)

    def _with_others(self, below: Rows, *, liar: bool, number: int) -> tuple[Rows, Rows]:
        others = self._learnt()
        others[below] = False
        if liar:
            others |= self._rank == _RUNNING
            others[number : number + 1] &= self._rank[number : number + 1] != _RUNNING
        return np.sort(below), np.flatnonzero(others)

    def observed(self, names: Iterable[str], rows: Rows) -> dict[str, Floats]:
        """Return the coordinates of those of `rows` in which all parameters are known."""
        columns = {name: self._column[name][rows] for name in names}
        known = np.ones(len(rows), dtype=bool)
        for column in columns.values():
            known &= ~np.isnan(column)
        return {name: column[known] for name, column in columns.items()}

    def _end(self, result: Result) -> tuple[int, float, float]:
        """Return rank, loss and step as they are stored."""
        rank = _RANK[result.status]
        if rank == DONE:
            value = math.nan if result.value is None else float(result.value)
            return (_FAILED, 0.0, 0.0) if math.isnan(value) else (DONE, self._sign * value, 0.0)
        if rank in (_STOPPED, _PAUSED):
            if not result.intermediate:
                return rank, 0.0, _NO_STEP
            step, value = max(result.intermediate, key=lambda pair: pair[0])
            return rank, math.inf if math.isnan(value) else self._sign * float(value), float(step)
        return rank, 0.0, 0.0

    def _make_room(self, number: int) -> None:
        missing = number + 1 - len(self._rank)
        if missing > 0:
            # doubling: an append costs the same at any size
            missing = max(missing, len(self._rank), 64)
            self._rank = np.concatenate([self._rank, np.full(missing, _UNTOLD, dtype=np.int8)])
            self._loss = np.concatenate([self._loss, np.zeros(missing)])
            self._step = np.concatenate([self._step, np.zeros(missing)])
            for name, column in self._column.items():
                self._column[name] = np.concatenate([column, np.full(missing, math.nan)])


def best(rows: Rows, count: int, loss: Floats) -> Rows:
    """Return the `count` of `rows` with the smallest loss, ties to the first, without a sort."""
    if 0 < count < len(rows):
        limit = np.partition(loss[rows], count - 1)[count - 1]
        rows = rows[loss[rows] <= limit]
    return rows[np.argsort(loss[rows], kind="stable")[:count]]


class BudgetHistory(TpeHistory):
    """A history that selects the good trials if some are ended early: the best ones at one budget,
    which is the largest step that enough trials reached.

    Optuna prefers trials that ran to their end, whatever they reached. Under a scheduler that stops
    most trials these are nearly all of the good ones, and the model collapses onto the first
    survivor. Here values are compared at one budget, as in BOHB (Falkner, Klein and Hutter, ICML
    2018, section 3.2 and algorithm 2).

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
