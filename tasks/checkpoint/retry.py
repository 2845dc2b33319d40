"""Retrying while a store is unreachable: growing pauses, one log line, and a time limit."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from regrow.tasks.ports.store import Unavailable

T = TypeVar("T")

FIRST_SECONDS, MOST_SECONDS = 0.5, 10.0
"""First and longest pause. Each is random, up to twice the one before: nobody retries in step."""


def retry_while_unavailable(
    what: Callable[[], T],
    *,
    say: Callable[[str], object],
    seconds: float = math.inf,
    given_up: threading.Event | None = None,
    failed: Callable[[Unavailable], object] = lambda _: None,
) -> T:
    """Call `what` until the store answers, and return its result.

    Raises the last Unavailable after `seconds`, or as soon as `given_up` is set; any other error
    immediately.

    Args:
        what: the call.
        say: called with one line at the first failure, and one when the store is back.
        seconds: time limit.
        given_up: event that ends the waiting; None for none.
        failed: called with each failure.

    """
    stop = given_up or threading.Event()
    deadline = time.monotonic() + seconds
    pause, announced = FIRST_SECONDS, False
    while True:
        try:
            result = what()
        except Unavailable as error:
            failed(error)
            if stop.is_set() or time.monotonic() >= deadline:
                raise
            if not announced:
                announced = True
                say(f"the state store is out of reach, waiting for it: {error}")
            stop.wait(random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, MOST_SECONDS)
        else:
            if announced:
                say("the state store is back")
            return result
