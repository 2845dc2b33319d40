"""Ctrl-C and SIGTERM while an experiment runs: first asked to end well, then at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GRACE_SECONDS = 30.0
"""How long attempts get to save a checkpoint after the first signal. A second one ends the wait."""


class Interrupts:
    """What the user asked for. `asked` holds after the first signal, `urgent` after a second or when the grace is over."""

    def __init__(self) -> None:
        self._signals = 0
        self._since = 0.0

    def ask(self, *_: Any) -> None:
        """Takes a signal."""
        self._signals += 1
        if self._signals == 1:
            self._since = time.monotonic()

    @property
    def asked(self) -> bool:
        """Whether the experiment is to end with checkpoints."""
        return self._signals > 0

    @property
    def urgent(self) -> bool:
        """Whether it is to end now."""
        return self._signals > 1 or (self._signals == 1 and time.monotonic() - self._since > GRACE_SECONDS)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Takes SIGINT and SIGTERM over within the block, if this is the main thread."""
    caught = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    before = {number: signal.signal(number, caught.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
