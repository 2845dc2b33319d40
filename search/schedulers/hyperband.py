"""HyperBand: brackets of successive halving that trade the number of trials for the minimum of
steps of each.

Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185),
2018, algorithm 1.
"""

from __future__ import annotations

from regrow.search import hyperband_plan
from regrow.search.schedulers.base import Layout
from regrow.search.schedulers.rungs import check_brackets, check_factor
from regrow.search.schedulers.successive_halving import SuccessiveHalving
from regrow.search.space.setting import Setting


class Hyperband(SuccessiveHalving):
    """The brackets of the paper one after the other, starting again with the first as long as
    trials come.

    `reduction_factor` is the paper's eta. `brackets`: use only this many, those that start with the
    most trials; None for all.
    """

    layout: Layout = "brackets"

    def __init__(
        self, setting: Setting, *, reduction_factor: int = 3, brackets: int | None = None
    ) -> None:
        check_factor(reduction_factor)
        super().__init__(setting, reduction_factor=reduction_factor)
        planned = hyperband_plan.brackets(setting.max_steps or 1, reduction_factor)
        check_brackets(brackets, len(planned))
        self._plans = [(plan[0][0], [step for _, step in plan[:-1]]) for plan in planned[:brackets]]
