"""Clusters that grow once something waits: variables with their largest size."""

from __future__ import annotations

import os

from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

SLOTS = "REGROW_SLOTS"
"""Variable with the most trials, or workers of trials with several, that it has room for."""
MARKETS = "REGROW_MARKETS"
"""Variable with the kinds of machines it may have, by Ray's names: "spot,on-demand"."""


def most(spec: Spec) -> int | None:
    """Return how many slots attempts may use at a time, regardless of the cluster's current size;
    None: no limit beyond that size.

    At least enough for one attempt. Raises UserError if the variable is not a number.
    """
    least, most = spec.resources.widths
    if spec.concurrency is not None:
        return spec.concurrency * most
    if not (text := os.environ.get(SLOTS, "")):
        return None
    if not (text.isdecimal() and int(text) > 0):
        raise UserError(
            f"{SLOTS}={text!r} is not a whole number from 1: say how many trials may run at a time,"
            " or unset it"
        )
    return max(int(text), least)


def markets() -> frozenset[str]:
    """Return the kinds of machines that the cluster may ever have; empty: unspecified."""
    return frozenset(word.strip() for word in os.environ.get(MARKETS, "").split(",")) - {""}
