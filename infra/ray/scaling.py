"""A cluster that grows as soon as something waits: how large it may become, as whoever started it says in the environment."""

from __future__ import annotations

import json
import os

from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

SLOTS = "REGROW_SLOTS"
"""How many trials the cluster may have room for at most or, of trials of several workers, how many workers."""
MARKETS = "REGROW_MARKETS"
"""Which kinds of machines it may have, by Ray's names: "spot,on-demand"."""


MARKET = "REGROW_MARKET"
"""Where a trial begins, and when it may go elsewhere: the key `market` of a specification that has none, as JSON."""


def with_market(spec: Spec) -> Spec:
    """The specification with the cluster's `market`, if it has none of its own. Raises UserError for a variable that is none."""
    if spec.market is not None or not (text := os.environ.get(MARKET, "")):
        return spec
    try:
        often = {"evictions": spec.retries.spot} if spec.retries.spot else {}
        return Spec.parse({**spec.to_json(), "market": {**often, **json.loads(text)}})
    except (ValueError, TypeError, SpecError) as error:
        hint = "write it as the specification's key `market`, as JSON, or unset it"
        raise UserError(f"{MARKET}={text!r}: {error}; {hint}") from None


def most(spec: Spec) -> int | None:
    """How many slots attempts are to have at a time whatever the cluster has room for now; None: as many as that.

    They are enough for one attempt. Raises UserError for a variable that is no number.
    """
    least, most = spec.resources.widths
    if spec.concurrency is not None:
        return spec.concurrency * most
    if not (text := os.environ.get(SLOTS, "")):
        return None
    if not (text.isdecimal() and int(text) > 0):
        raise UserError(f"{SLOTS}={text!r} is not a whole number from 1: say how many trials may run at a time, or unset it")
    return max(int(text), least)


def markets() -> frozenset[str]:
    """Kinds of machines that the cluster may have, also while it has none of them; empty where nobody says."""
    return frozenset(word.strip() for word in os.environ.get(MARKETS, "").split(",")) - {""}
