"""What ends a session before its time: Ctrl-C, SIGTERM, a closed terminal, `regrow stop`. First asked to end well, then at once.

An ending that has begun stays one: whoever is about to begin something anew looks here first.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from regrow.search.events import Status
from regrow.tasks.forking import Handler, handling

GRACE_SECONDS = 30.0
"""How long attempts get to save a checkpoint after the first signal. A second one ends the wait."""
LAST_SECONDS = 10.0
"""How long the process may live after that when it was told to end; whatever is not done by then is done by the next session."""
INTERRUPTED_EXIT = 3
_WHY = {
    signal.SIGINT: "interrupted by the user", signal.SIGTERM: "it was told to end (SIGTERM)",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}


class Interrupts:
    """What was asked for. `begun`: (status, why) of the ending under way, None if nothing ends yet."""

    def __init__(self) -> None:
        self.begun: tuple[Status, str] | None = None
        self._told = False
        """Whether this process was told to end, and not just asked by Ctrl-C."""
        self._heeded = False
        self._signals = 0
        self._since = 0.0
        self._came: SimpleQueue[int] = SimpleQueue()
        # nohup has SIGHUP ignored: so it stays
        taken = (number for number in _WHY if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN)
        self.handlers: Mapping[int, Handler] = dict.fromkeys(taken, self.ask)

    def handle_signals(self) -> None:
        """From now on somebody looks here. Before, a signal raises KeyboardInterrupt: nothing has begun that could end well."""
        self._heeded = True

    def begin(self, status: Status, why: str) -> None:
        """The session is to end; the first reason stays."""
        if self.begun is None:
            self.begun = status, why

    def ask(self, number: int, _: Any) -> None:
        """Takes a signal, in the main thread, anywhere: so it takes no lock (SimpleQueue.put is what Python promises to work)."""
        if number == signal.SIGHUP:
            _leave_terminal()
        if not self._heeded:
            raise KeyboardInterrupt
        self._signals += 1
        if self._signals == 1:
            self._since = time.monotonic()
        self._told = self._told or number != signal.SIGINT
        self.begin("interrupted", _WHY[signal.Signals(number)])
        self._came.put(number)

    @property
    def urgent(self) -> bool:
        """Whether it is to end now: after a second signal, or when the grace is over."""
        return self._signals > 1 or self.left == 0.0

    @property
    def left(self) -> float:
        """Seconds of grace that are left, infinite while no signal came."""
        if self._signals == 0:
            return float("inf")
        return 0.0 if self._signals > 1 else max(0.0, GRACE_SECONDS - (time.monotonic() - self._since))

    def due(self, seconds: float) -> bool:
        """Whether an ending has begun, or does within `seconds`: the signal that ended others may be on its way to us."""
        deadline = time.monotonic() + seconds
        while self.begun is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.begun is not None

    def see_to_it(self) -> None:
        """Ends the process if it was told to end and does not. Runs in a thread, until `over`."""
        timeout, count = None, 0
        while True:
            try:
                number = self._came.get(timeout=timeout)
            except Empty:
                os._exit(INTERRUPTED_EXIT)
            if number == 0:
                return
            count += 1
            if self._told:  # Ctrl-C in a notebook must not end its kernel
                timeout = LAST_SECONDS + (GRACE_SECONDS if count == 1 else 0.0)

    def over(self) -> None:
        """It has ended."""
        self._came.put(0)


_open: list[Interrupts] = []
"""The one of the block under way, if there is one."""


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Takes SIGINT, SIGTERM and SIGHUP over within the block, if this is the main thread; not in a child that the user's code
    forks. Within such a block it is the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _open[0] if _open else Interrupts()
        return
    if _open:
        for number, handler in _open[0].handlers.items():
            signal.signal(number, handler)  # Prefect's engine has a handler of its own for SIGTERM, and puts ours back
        yield _open[0]
        return
    caught = Interrupts()
    _open.append(caught)
    threading.Thread(target=caught.see_to_it, name="regrow-interrupts", daemon=True).start()
    try:
        with handling(caught.handlers):
            yield caught
    finally:
        _open.clear()
        caught.over()


def _leave_terminal() -> None:
    """Writing to a terminal that is gone fails: from now on it goes nowhere."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
