"""Repair of forked children: signals that regrow handles are reset, and locks are replaced.

A fork copies the whole process except its other threads. In the child, regrow's handlers have
nothing to notify, and a lock that another thread held is never released. Everything here acts in
forked children only; processes that are started anew (spawn, forkserver, subprocess) need no
repair.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Protocol
from weakref import WeakSet

Handler = Callable[[int, FrameType | None], object]


class Renewed(Protocol):
    """An object with locks or threads."""

    def renew(self) -> None:
        """Make the object usable in a forked child, which has one thread."""
        ...


_installed: list[Mapping[int, Handler]] = []
"""Installed handlers of regrow."""
_renewed: WeakSet[Renewed] = WeakSet()
_masks = threading.local()


@contextmanager
def handling(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Handle signals within the block, which is in the main thread.

    A child that is forked meanwhile, by any thread, is killed by them. The earlier handlers are not
    restored in the child: Ray's raises an error, which is lost when it is raised that early.
    """
    before = {number: signal.getsignal(number) for number in handlers}
    _installed.append(handlers)
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        _installed[:] = [others for others in _installed if others is not handlers]


def renewed(thing: Renewed) -> None:
    """Have `thing.renew` called in each forked child as long as `thing` lives."""
    _renewed.add(thing)


def _before() -> None:
    # A signal that arrives before the child resets its handlers would be lost: it is blocked
    # until then.
    _masks.before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {number for handlers in _installed for number in handlers}
    )


def _after() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:
    for handlers in _installed:
        for number, handler in handlers.items():
            # else the user's code has set a handler meanwhile
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)
    _installed.clear()
    _after()
    # Prefect's exit functions wait for its threads at the end of a process. A child has none of
    # these threads and would end with exit code 1, which is an error for a worker of a data loader.
    ends: list[partial[object]] = threading._threading_atexits  # type: ignore[attr-defined]  # noqa: SLF001 - no public way (3.14)
    ends[:] = [
        end for end in ends if not getattr(end.func, "__module__", "").startswith("prefect.")
    ]
    for thing in list(_renewed):
        thing.renew()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
