"""Asynchronous HyperBand: several brackets of ASHA, each with its own grace period.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, section 3.3; the
option `brackets` of Ray Tune's ASHAScheduler.
"""

from __future__ import annotations

from itertools import accumulate

from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.schedulers.asha import Asha, made
from regrow.search.schedulers.base import Layout
from regrow.search.schedulers.rungs import Bracket, check_brackets, rung_steps
from regrow.search.space.setting import Setting


class AsyncHyperband(Asha):
    """A trial belongs to a bracket b, which is ASHA with a grace period of grace_period *
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
    ) -> None:
        steps = rung_steps(setting.max_steps or 0, grace_period, reduction_factor)
        check_brackets(brackets, len(steps) + 1)
        if not isinstance(eager, int) or isinstance(eager, bool) or eager < 0:
            raise SpecError("eager", eager, "is not a number of trials", "write 0, or 12")
        super().__init__(setting, grace_period=grace_period, reduction_factor=reduction_factor)
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
        return next(
            bracket
            for bracket, bound in zip(self._brackets, self._bounds, strict=True)
            if u < bound
        )
