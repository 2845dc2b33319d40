"""What a forked child of ours gets back: the signals that we took over, and locks that nobody holds.

A fork copies the whole process but its other threads: in the child, a handler of ours has nobody to tell, a lock that another
thread held is held for good. Everything here does something in forked children only; those that are started anew (spawn,
forkserver, subprocess) begin clean by themselves.
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
    """Something with locks or threads."""

    def renew(self) -> None:
        """Called in a forked child, where the process has one thread: makes it usable there."""
        ...


_installed: list[Mapping[int, Handler]] = []
"""Handlers of ours that are installed."""
_renewed: WeakSet[Renewed] = WeakSet()
_masks = threading.local()


@contextmanager
def handling(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Takes signals over within the block, which is in the main thread. A child that is forked meanwhile, by any thread, dies of
    them: not even by the handlers of before, as Ray's raises an error, and one that is raised as early as this is lost.
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
    """Has `thing` renewed in each child that is forked as long as it lives."""
    _renewed.add(thing)


def _before() -> None:
    # A signal that reached the child before it has its own handler would be lost: it waits until then.
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {number for handlers in _installed for number in handlers})


def _after() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:
    for handlers in _installed:
        for number, handler in handlers.items():
            if signal.getsignal(number) is handler:  # else the user's code has set its own meanwhile
                signal.signal(number, signal.SIG_DFL)
    _installed.clear()
    _after()
    _forget_services()
    for thing in list(_renewed):
        thing.renew()


def _forget_services() -> None:
    """Prefect waits for threads of its own at the end of a process. A child has none of them and would end with exit
    code 1; of a loader's worker, that is an error.
    """
    ends: list[partial[object]] = threading._threading_atexits  # type: ignore[attr-defined]  # noqa: SLF001 - no public way (3.14)
    ends[:] = [end for end in ends if not getattr(end.func, "__module__", "").startswith("prefect.")]


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
