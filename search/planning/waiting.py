"""Which attempts have waited so long for a machine that the planner may withdraw them."""

from __future__ import annotations

from collections.abc import Callable

from regrow.search.history import History
from regrow.search.planning.market import patience
from regrow.search.planning.widths import SHRINK_SECONDS, may_narrow, too_wide

WITHDRAW_SECONDS = 10.0
"""Seconds that an attempt may still wait to begin when the session is ending."""


def waiting_long(
    history: History, waits: Callable[[int, int], float]
) -> list[tuple[int, int, float]]:
    """Return attempts that have waited so long for a machine that the planner may withdraw them,
    each once: (trial, number, seconds).

    `waits`: returns for how long an attempt has waited.
    """
    least, most = history.spec.resources.widths
    found: list[tuple[int, int, float]] = []
    # Seconds after which a waiting attempt may be withdrawn; None: never.
    usual = patience(history)
    if history.closing is not None:
        usual = WITHDRAW_SECONDS
    for number in sorted(history.running) if usual is not None or least < most else ():
        a = history.trials[number].attempt
        if a is None or a.t_began is not None or a.waited:
            continue
        longest = SHRINK_SECONDS if history.closing is None and may_narrow(history, a) else usual
        if history.closing is None and too_wide(history, a):
            longest = 0.0
        if longest is not None and (waited := waits(number, a.number)) >= longest:
            found.append((number, a.number, round(waited, 3)))
    return found
