"""The brackets of HyperBand, used by a scheduler and a sampler: how many trials do how many steps.

Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185),
2018, algorithm 1.
"""

from __future__ import annotations


def brackets(max_steps: int, eta: int, min_steps: int = 1) -> list[list[tuple[int, int]]]:
    """Return the brackets of algorithm 1, s from s_max down to 0: [(n_i, r_i), ...], trials and
    steps of each rung.

    s_max = floor(log_eta(R)), n = ceil((s_max + 1) / (s + 1) * eta**s), n_i = floor(n * eta**-i),
    r_i = R * eta**(i - s), in whole numbers: r_i is rounded, halves up. For max_steps = 81 and eta
    = 3 it is table 1 of the paper. R is max_steps in units of `min_steps`; no r_i is below that.
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
