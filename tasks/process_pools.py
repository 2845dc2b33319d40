"""Pools of processes that a library keeps from one call to the next: they end with the attempt that made them."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def end() -> None:
    """Ends joblib's pool, if there is one. Else the next attempt in this process would be given one whose processes are gone:
    `cross_val_score(n_jobs=-1)` failed in the second trial.
    """
    kept: Any = sys.modules.get("joblib.externals.loky.reusable_executor")
    # Its public name, get_reusable_executor, would start a pool where there is none.
    pool = None if kept is None else getattr(kept, "_executor", None)
    if pool is not None:
        with suppress(Exception):  # whatever a pool that is broken already says
            pool.shutdown(wait=True, kill_workers=True)
