"""Clusters that grow once something waits: their largest size, set in the environment by the
program that started them.
"""

from __future__ import annotations

import json
import os

from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

SLOTS = "REGROW_SLOTS"
"""Variable with the most trials the cluster may have room for or, for trials of several workers,
the most workers.
"""
MARKETS = "REGROW_MARKETS"
"""Variable with the kinds of machines it may have, by Ray's names: "spot,on-demand"."""


MARKET = "REGROW_MARKET"
"""Variable with where a trial starts, and when it may move: the key `market` for specifications
without one, as JSON.
"""


def with_market(spec: Spec) -> Spec:
    """Return the specification with the cluster's `market`, if it has none itself. Raises UserError
    for an invalid variable.
    """
    if spec.market is not None or not (text := os.environ.get(MARKET, "")):
        return spec
    try:
        often = {"evictions": spec.retries.spot} if spec.retries.spot else {}
        return Spec.parse({**spec.to_json(), "market": {**often, **json.loads(text)}})
    except (ValueError, TypeError, SpecError) as error:
        hint = "write it as the specification's key `market`, as JSON, or unset it"
        raise UserError(f"{MARKET}={text!r}: {error}; {hint}") from None


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
    """Return the kinds of machines that the cluster may have, even if it has none of them now;
    empty if not specified.
    """
    return frozenset(word.strip() for word in os.environ.get(MARKETS, "").split(",")) - {""}
