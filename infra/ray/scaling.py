"""Clusters that grow once something waits: variables with their largest size."""

from __future__ import annotations

import os

from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

SLOTS = "REGROW_SLOTS"
"""Variable with the most trials, or workers of trials with several, that it has room for."""
MACHINES = "REGROW_MACHINES"
"""Variable with the machines that the cluster has, or may have, by their kind:
"spot=16,on-demand=6". Machines of fleets have it.
"""
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


def least(spec: Spec) -> int:
    """Return for how many slots attempts are submitted at least, although the cluster has room for
    fewer now: with `market`, one for each machine of the kind that they ask for first. Those that
    wait for one are what others are started for. Raises UserError for a variable of another form.
    """
    return 0 if spec.market is None else _machines().get(spec.market.first, 0)


def on_demand(spec: Spec) -> int:
    """Return how many slots there may be on on-demand machines, although these are not there now:
    with `market`, one for each machine. Raises UserError as `least`.
    """
    return 0 if spec.market is None else _machines().get("on-demand", 0)


def _machines() -> dict[str, int]:
    if not (text := os.environ.get(MACHINES, "")):
        return {}
    found = dict(word.partition("=")[::2] for word in text.split(","))
    if not all(count.isdecimal() for count in found.values()):
        raise UserError(f'{MACHINES}={text!r} is not of the form "spot=16,on-demand=6"')
    return {market: int(count) for market, count in found.items()}
