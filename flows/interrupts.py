"""Early ends of a session: Ctrl-C, SIGTERM, a closed terminal, `regrow stop`. The first request
ends it in order, the second immediately.

An ending that has begun is never revoked: code that starts something new checks here first.
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

from regrow.infra.machine.supervised import until
from regrow.search.events import Status
from regrow.tasks.process import background
from regrow.tasks.process.forking import Handler, handling
from regrow.tasks.process.interrupted import InterruptedBySignal, check

GRACE_SECONDS = 30.0
"""Seconds for attempts to save a checkpoint after a signal; a second one ends the wait."""
LAST_SECONDS = 10.0
"""Seconds that the process may live after the grace period if it has to end; the next session does
what is left.
"""
SAME_SECONDS = 5.0
"""Seconds within which a second SIGTERM is the same request, if an agent runs the driver: Slurm and
systemd send it to all processes of a job, and the agent passes its own on.
"""
INTERRUPTED_EXIT = 3
PAUSED = "paused in Prefect"
"""Why a session ends whose flow run was paused."""
_WHY = {
    signal.SIGINT: "interrupted by the user",
    signal.SIGTERM: "it was terminated (SIGTERM)",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}


class Interrupts:
    """Requests to end a session. `begun`: (status, why) of the ending in progress; None: none.
    `agent`: the agent that runs this driver; empty for none.
    """

    def __init__(self, agent: str = "") -> None:
        self._agent = agent
        self.begun: tuple[Status, str] | None = None
        self._must_end = False
        """Whether this process has to end (SIGTERM, SIGHUP), rather than being asked by Ctrl-C."""
        self._heeded = False
        self._signals = 0
        self._since = 0.0
        self._sigterm = -SAME_SECONDS
        """When the last SIGTERM came that was a request of its own."""
        self._came: SimpleQueue[int] = SimpleQueue()
        # nohup makes the process ignore SIGHUP; this is kept
        taken = (
            number
            for number in _WHY
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
        )
        self.handlers: Mapping[int, Handler] = dict.fromkeys(taken, self.ask)

    def handle_signals(self) -> None:
        """Handle signals in order from now on. Before, a signal raises KeyboardInterrupt, as
        nothing has begun that needs an orderly end.

        Raises Interrupted for an earlier signal whose exception was lost where Python cannot raise.
        """
        if self._signals and not self._heeded:
            raise InterruptedBySignal
        self._heeded = True

    def begin(self, status: Status, why: str) -> None:
        """Begin to end the session; the first reason stays."""
        if self.begun is None:
            self.begun = status, why

    def ask(self, number: int, _: Any) -> None:
        """Handle a signal. Runs in the main thread at any point, so it takes no lock (Python
        guarantees that SimpleQueue.put is reentrant).
        """
        if number == signal.SIGHUP:
            _leave_terminal()
        if number == signal.SIGTERM and self._agent:
            now = time.monotonic()
            if now - self._sigterm < SAME_SECONDS:
                return
            self._sigterm = now
        self._signals += 1
        self._must_end = self._must_end or number != signal.SIGINT
        if not self._heeded:
            self._came.put(number)
            # else cleaning up has begun already
            if self._signals == 1 or (self._signals > 2 and not self._must_end):
                raise InterruptedBySignal
            return
        if self._signals == 1:
            self._since = time.monotonic()
        why = _WHY[signal.Signals(number)]
        if self._agent:
            why = f"agent {self._agent}, which led, leaves"
        self.begin("interrupted", why)
        self._came.put(number)

    @property
    def urgent(self) -> bool:
        """Whether the session has to end now: after a second signal, or without grace left."""
        return self._signals > 1 or self.left == 0.0

    @property
    def left(self) -> float:
        """Seconds of grace that are left; infinite before a signal, 0 after a second one."""
        if self._signals == 0:
            return float("inf")
        return (
            0.0 if self._signals > 1 else max(0.0, GRACE_SECONDS - (time.monotonic() - self._since))
        )

    def due(self, seconds: float) -> bool:
        """Return whether an ending has begun, or begins within `seconds`: the signal that ended
        other processes may be about to arrive.
        """
        return until(lambda: self.begun is not None, seconds=seconds)

    def end_if_overdue(self) -> None:
        """End the process if it has to end and does not. Runs in a thread until `over`."""
        timeout, count = None, 0
        while True:
            try:
                number = self._came.get(timeout=timeout)
            except Empty:
                os._exit(INTERRUPTED_EXIT)
            if number == 0:
                return
            count += 1
            if self._must_end:  # Ctrl-C in a notebook must not end its kernel
                timeout = LAST_SECONDS + (GRACE_SECONDS if count == 1 else 0.0)

    def over(self) -> None:
        """Mark the session as ended."""
        self._came.put(0)


_open: list[Interrupts] = []
"""The Interrupts of the current block; empty for none."""


@contextmanager
def catching_interrupts(agent: str = "") -> Iterator[Interrupts]:
    """Handle SIGINT, SIGTERM and SIGHUP within the block, if this is the main thread.

    Children that the user's code forks do not handle them. A nested block yields the same object.
    `agent`: see Interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _open[0] if _open else Interrupts(agent)
        return
    if _open:
        for number, handler in _open[0].handlers.items():
            # Prefect's engine has its own SIGTERM handler, and restores ours
            signal.signal(number, handler)
        yield _open[0]
        return
    check()
    caught = Interrupts(agent)
    _open.append(caught)
    background.start(caught.end_if_overdue, name="interrupts")
    try:
        with handling(caught.handlers):
            yield caught
    finally:
        _open.clear()
        caught.over()


def _leave_terminal() -> None:
    """Redirect output from a closed terminal, to which writing fails, to /dev/null."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
