"""How often a trial saves with `checkpoint: auto`: as seldom as the losses seen so far allow.

Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974), with Daly's
correction, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22
(2006): sqrt(2 C M) - C, with C the duration of a checkpoint and M the mean time between losses of a
slot. Losses with a notice do not count: there the trial saves.
"""

from __future__ import annotations

import math

from regrow.search.history import History

FIRST_SECONDS = 4 * 3600.0
"""Before the first loss, one is supposed within this time of a slot."""
MOST_COST = 0.1
"""Most of the time that may go into checkpoints."""
LONGEST_SECONDS = 3600.0
"""Longest time between two checkpoints."""


def interval(history: History) -> float | None:
    """Return the seconds between two checkpoints of the next attempt; None: every step, as no
    checkpoint was measured yet.
    """
    cost = history.pace.save
    if cost is None:
        return None
    mean = (history.pace.ran + FIRST_SECONDS) / (history.pace.losses + 1)
    best = math.sqrt(2 * cost * mean) - cost
    return round(min(max(best, cost / MOST_COST), LONGEST_SECONDS), 3)
