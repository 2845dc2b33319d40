"""HyperBand: brackets of successive halving that trade the number of trials for the steps that each gets at least.

Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185), 2018, algorithm 1.
"""

from __future__ import annotations

from regrow.search.schedulers.rungs import check_brackets, check_factor
from regrow.search.schedulers.successive_halving import SuccessiveHalving
from regrow.search.setting import Setting


def brackets(max_steps: int, eta: int, min_steps: int = 1) -> list[list[tuple[int, int]]]:
    """The brackets of algorithm 1, s from s_max down to 0: [(n_i, r_i), ...], trials and steps of each rung.

    s_max = floor(log_eta(R)), n = ceil((s_max + 1) / (s + 1) * eta**s), n_i = floor(n * eta**-i), r_i = R * eta**(i - s),
    in whole numbers: r_i is rounded, halves up. For max_steps = 81 and eta = 3 it is table 1 of the paper. R is max_steps in
    units of `min_steps`, which no r_i is below.
    """
    s_max = 0
    while eta ** (s_max + 1) * min_steps <= max_steps:
        s_max += 1
    found = []
    for s in range(s_max, -1, -1):
        n = -(-(s_max + 1) * eta**s // (s + 1))
        steps = [(2 * max_steps + eta ** (s - i)) // (2 * eta ** (s - i)) for i in range(s + 1)]
        found.append([(max(1, n // eta**i), step) for i, step in enumerate(steps)])
    return found


_planned = brackets


class Hyperband(SuccessiveHalving):
    """The brackets of the paper one after the other, and again from the first as long as trials come.

    `reduction_factor` is the paper's eta. `brackets`: only so many, those that start with the most trials; None for all.
    """

    def __init__(self, setting: Setting, *, reduction_factor: int = 3, brackets: int | None = None) -> None:
        check_factor("hyperband", reduction_factor)
        super().__init__(setting, reduction_factor=reduction_factor)
        planned = _planned(setting.max_steps or 1, reduction_factor)
        check_brackets("hyperband", brackets, len(planned))
        self._plans = [(plan[0][0], [step for _, step in plan[:-1]]) for plan in planned[:brackets]]
