"""Daemon threads: one that runs a function, one that lasts as long as a block, one that calls a
function periodically.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


def start(do: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """Return a new thread that calls `do(*args)`. Its name gets the prefix "regrow-", by which
    logged stacks leave it out.
    """
    thread = threading.Thread(target=do, args=args, name=f"regrow-{name}", daemon=True)
    thread.start()
    return thread


@contextmanager
def during(
    run: Callable[[threading.Event], object], *, name: str, wait: float | None = None
) -> Iterator[threading.Thread]:
    """Call `run(done)` in a thread within the block, and yield the thread. The block's end sets
    `done`, then waits `wait` seconds at most for the thread; None: as long as it takes.
    """
    done = threading.Event()
    thread = start(run, done, name=name)
    try:
        yield thread
    finally:
        done.set()
        thread.join(wait)


def every(
    seconds: float, do: Callable[[], object], *, name: str, wait: float | None = None
) -> AbstractContextManager[threading.Thread]:
    """Call `do` every `seconds` within the block, in a thread, until it returns True; the first
    call comes after `seconds`. An exception ends the thread. `wait`: see `during`.
    """

    def run(done: threading.Event) -> None:
        while not done.wait(seconds) and do() is not True:
            pass

    return during(run, name=name, wait=wait)
