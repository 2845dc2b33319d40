"""Process pools that a library keeps between calls: they are ended with the attempt that made
them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def end() -> None:
    """Shut down joblib's pool, if there is one.

    Otherwise the next attempt in this process would get a pool whose processes are gone:
    `cross_val_score(n_jobs=-1)` failed in the second trial.
    """
    kept: Any = sys.modules.get("joblib.externals.loky.reusable_executor")
    # The public function, get_reusable_executor, would start a pool if there is none.
    pool = None if kept is None else getattr(kept, "_executor", None)
    if pool is not None:
        with suppress(Exception):  # a broken pool may raise anything
            pool.shutdown(wait=True, kill_workers=True)
