"""PASHA: ASHA that allows more steps only as long as more steps change the ranking of the trials.

Bohdal, Balles, Wistuba, Ermis, Archambeau, Zappella, "PASHA: Efficient HPO and NAS with Progressive
Resource Allocation", ICLR 2023, algorithm 1 and section 4 (soft ranking; epsilon from the noise of
the learning curves).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from regrow.search.schedulers.asha import Asha, PromotionBracket
from regrow.search.schedulers.base import Verdict
from regrow.search.space.setting import Setting

PERCENTILE = 90
"""Percentile of the distances between noisy pairs that is epsilon (section 4.2)."""


class Pasha(Asha):
    """ASHA of promotion type (see asha.py) up to a highest rung: the second one at first.

    When a trial arrives at the highest rung and the trials there are ranked differently than at the
    rung below, the next rung is opened, finally max_steps. The ranking is soft: place k of the
    highest rung may be taken by any trial whose value at the rung below differs by at most epsilon
    from that of the trial in place k there. Epsilon is the 90th percentile (linear between order
    statistics) of the distances, at the highest rung, of all pairs of trials there whose curves
    criss-cross: one is ahead at that rung, was behind earlier and ahead before that. Without such a
    pair it does not change; it is 0 at first.

    Where the paper is silent: epsilon counts the trials that have reached the highest rung; an
    arrival opens at most one rung; of equal values the one that came first is better. Possibly no
    trial reaches max_steps: the best one is then known from fewer steps, which is the purpose.
    `grace_period` and `reduction_factor` are those of "asha".
    """

    def __init__(
        self, setting: Setting, *, grace_period: int = 1, reduction_factor: int = 3
    ) -> None:
        super().__init__(setting, grace_period=grace_period, reduction_factor=reduction_factor)
        steps = self._brackets[0].steps
        self._bracket = PromotionBracket(steps, reduction_factor)
        self._bracket.open = steps[:1]
        self._brackets = [self._bracket]
        self.epsilon = 0.0
        """In the objective's unit."""
        self._curves: dict[int, tuple[float, ...]] = {}
        self._distances: list[float] = []
        """Distances of the noisy pairs at the highest rung."""

    @property
    def highest(self) -> int:
        """Most steps that a trial may do at present."""
        steps, opened = self._bracket.steps, len(self._bracket.open)
        return steps[opened] if opened < len(steps) else self.setting.max_steps or 0

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Enter the value into its rung, and open the next one if the ranking has changed."""
        super().tell(trial, values, verdict)
        if len(values) != self.highest:
            return
        curve = tuple(values)
        for other in self._curves.values():
            if crosses(curve, other):
                self._distances.append(abs(curve[-1] - other[-1]))
        self._curves[trial] = curve
        if self._distances:
            self.epsilon = percentile(self._distances, PERCENTILE)
        if not self._stable():
            self._bracket.open = self._bracket.steps[: len(self._bracket.open) + 1]
            self._curves.clear()
            self._distances.clear()

    def _stable(self) -> bool:
        """Return whether the two highest rungs rank the trials of the highest one alike."""
        at = self._bracket.steps.index(self.highest)
        top = self._bracket.rungs[self.highest].reached
        here = {key[-1] for key in top}
        before = self._bracket.rungs[self._bracket.steps[at - 1]].reached
        below = [key for key in before if key[-1] in here]
        costs = {key[-1]: key[0] for key in below}
        return all(
            abs(costs[mine[-1]] - theirs[0]) <= self.epsilon or mine[-1] == theirs[-1]
            for mine, theirs in zip(top, below, strict=True)
        )


def crosses(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two curves were in the opposite order earlier, and in today's before."""
    now = one[-1] > other[-1]
    opposite = False
    for a, b in zip(reversed(one[:-1]), reversed(other[:-1]), strict=True):
        if (a > b) != now:
            opposite = True
        elif opposite:
            return True
    return False


def percentile(values: Sequence[float], q: float) -> float:
    """Return a percentile as numpy computes it: linear between the order statistics."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
