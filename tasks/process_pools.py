"""Pools of processes that a library keeps from one call to the next: they end with the attempt that made them."""

from __future__ import annotations

import sys
from contextlib import suppress


def end() -> None:
    """Ends joblib's pool, if there may be one. Else the next attempt in this process would have one whose processes are gone:
    `cross_val_score(n_jobs=-1)` failed in the second trial.
    """
    loky = sys.modules.get("joblib.externals.loky")
    if loky is not None:
        with suppress(Exception):  # whatever a pool that is broken already says
            loky.get_reusable_executor().shutdown(wait=False, kill_workers=True)
