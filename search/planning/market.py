"""On which kind of machine a trial's next attempt is to run: spot first, on-demand when it must be, and back."""

from __future__ import annotations

from typing import Literal

from regrow.search.durations import in_words
from regrow.search.history import History, TrialRecord

Market = Literal["", "spot", "on-demand"]
"""As Ray's label "ray.io/market-type" has it; empty: any."""
BACK = 6.0
"""So many times `after` a trial stays with the other kind, if nobody has found a machine of the first kind meanwhile."""


def following(history: History, trial: TrialRecord, now: float) -> Market:
    """The kind of machine that the trial's next attempt asks for."""
    wish = history.spec.market
    if wish is None:
        return ""
    evicted = wish.evictions is not None and trial.evictions >= wish.evictions
    home: Market = "on-demand" if evicted else wish.first
    if trial.in_vain is None or trial.in_vain[0] != home:
        return home
    _, since = trial.in_vain
    found = history.found.get(home, 0.0) > since
    later = wish.after is not None and now >= since + BACK * wish.after
    return home if found or later else "spot" if home == "on-demand" else "on-demand"


def why_withdrawn(history: History, market: str, waited: float) -> str | None:
    """Why an attempt that waits for a machine, for so many seconds by now, is to wait no longer; None if it is to."""
    if history.closing is not None:
        return f"it waited {in_words(waited)} for {kind(market)}, and the experiment is ending"
    wish = history.spec.market
    if wish is None or wish.after is None or waited < wish.after:
        return None
    return f"it waited {in_words(waited)} for {kind(market)}"


def kind(market: str) -> str:
    """A machine of this market, for people."""
    return {"spot": "a spot machine", "on-demand": "an on-demand machine"}.get(market, "a machine")
