"""On which kind of machine a trial's next attempt runs, and when it changes to the other."""

from __future__ import annotations

from typing import Literal

from regrow.search.durations import in_words
from regrow.search.history import History, TrialRecord

Market = Literal["", "spot", "on-demand"]
"""Values of Ray's label "ray.io/market-type"; empty: any."""
BACK = 6.0
"""A trial stays with the other kind of machine for this many times `after`, unless an attempt
begins on a machine of the first kind in the meantime.
"""


def following(history: History, trial: TrialRecord, now: float) -> Market:
    """Return the kind of machine that the trial's next attempt asks for."""
    wish = history.spec.market
    if wish is None:
        return ""
    evicted = wish.evictions is not None and trial.evictions >= wish.evictions
    home: Market = "on-demand" if evicted else wish.first
    if trial.unmet_market is None or trial.unmet_market[0] != home:
        return home
    _, since = trial.unmet_market
    found = history.found.get(home, 0.0) > since
    later = wish.after is not None and now >= since + BACK * wish.after
    return home if found or later else "spot" if home == "on-demand" else "on-demand"


def why_withdrawn(history: History, market: str, waited: float) -> str | None:
    """Return why an attempt is to stop waiting for a machine, None if it is to wait on."""
    if history.closing is not None:
        return f"it waited {in_words(waited)} for {kind(market)}, and the experiment is ending"
    wish = history.spec.market
    if wish is None or wish.after is None or waited < wish.after:
        return None
    return f"it waited {in_words(waited)} for {kind(market)}"


def kind(market: str) -> str:
    """Return a name for a machine of this market, for people."""
    return {"spot": "a spot machine", "on-demand": "an on-demand machine"}.get(market, "a machine")
