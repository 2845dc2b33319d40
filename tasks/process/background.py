"""Daemon threads: one that runs a function, and one that calls it periodically during a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def start(do: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """Return a new thread that calls `do(*args)`, named "regrow-...": logged stacks omit it."""
    thread = threading.Thread(target=do, args=args, name=f"regrow-{name}", daemon=True)
    thread.start()
    return thread


@contextmanager
def every(
    seconds: float,
    do: Callable[[], object],
    *,
    name: str,
    first: float | None = None,
    wait: float | None = None,
) -> Iterator[threading.Thread]:
    """Call `do` every `seconds` within the block, in a thread, until it returns True; yield the
    thread. An exception ends it.

    Args:
        seconds: pause between two calls.
        do: what is called.
        name: the thread's name, see `start`.
        first: seconds before the first call; None: as many as between two.
        wait: seconds that the end of the block waits for a call under way; None: until it has
            ended.

    """
    done = threading.Event()

    def run() -> None:
        pause = seconds if first is None else first
        while not done.wait(pause) and do() is not True:
            pause = seconds

    thread = start(run, name=name)
    try:
        yield thread
    finally:
        done.set()
        thread.join(wait)
