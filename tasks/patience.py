"""Waiting for a store that is out of reach for a while: growing pauses, one word about it, and a bound."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from regrow.tasks.ports import Unavailable

T = TypeVar("T")

FIRST_SECONDS, MOST_SECONDS = 0.5, 10.0
"""The first pause, and the longest. Each is up to twice the one before, drawn at random so that waiters don't march in step."""


def patiently(
    what: Callable[[], T],
    *,
    say: Callable[[str], object],
    seconds: float,
    given_up: threading.Event | None = None,
) -> T:
    """Calls `what` until the store answers. `say` gets one line at the first failure and one when it is over.

    Raises the last Unavailable after `seconds`, or as soon as `given_up` is set; any other error at once.
    """
    stop = given_up or threading.Event()
    deadline = time.monotonic() + seconds
    pause, told = FIRST_SECONDS, False
    while True:
        try:
            result = what()
        except Unavailable as error:
            if stop.is_set() or time.monotonic() >= deadline:
                raise
            if not told:
                told = True
                say(f"the state store is out of reach, waiting for it: {error}")
            stop.wait(random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, MOST_SECONDS)
        else:
            if told:
                say("the state store is back")
            return result
