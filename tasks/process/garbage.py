"""Garbage collection in processes that run code of regrow only."""

from __future__ import annotations

import gc

_NEW_OBJECTS = 50_000
"""New objects after which the collector looks at them; Python's own choice is 700."""


def collect_rarely() -> None:
    """Let Python's collector of reference cycles run less often in this process.

    Importing Prefect, Ray and MLflow makes a million objects that stay, which it would visit again
    and again: 0.9 s of 3.9 s of CPU. Not for a process that runs the user's code: cycles there may
    hold a GPU's memory.
    """
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
