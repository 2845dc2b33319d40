"""Why an agent has to leave: a signal, the end of its machine's time, a notice of the cloud, or as
its machine is idle.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from regrow.infra.ray import metadata
from regrow.tasks.process import background
from regrow.tasks.process.forking import handling

ENDS_SECONDS = 60.0
"""Seconds before the end of its machine at which an agent leaves."""
CLOUD_SECONDS = 5.0
"""Seconds between two questions to the cloud's metadata service."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Notices:
    """Why this agent has to leave, as far as it knows. `ends`: when its machine ends, seconds since
    the epoch; None: unknown.
    """

    def __init__(self, ends: float | None) -> None:
        self._ends = ends
        self._signal: int | None = None
        self._cloud: str | None = None
        self.idle: str | None = None
        """Why the machine is needed no more; None: it may be."""

    def handle_signal(self, number: int, _: object) -> None:
        """Handle a signal."""
        self._signal = number

    def ask(self, cloud: metadata.Cloud) -> None:
        """Ask a cloud whether this machine goes away."""
        with suppress(metadata.Unanswered):
            self._cloud = cloud.poll() or self._cloud

    @property
    def why(self) -> str | None:
        """The reason to leave; None: none."""
        if self._signal is not None:
            return f"it received {signal.Signals(self._signal).name}"
        if self._cloud is not None:
            return self._cloud
        if self._ends is not None and time.time() > self._ends - ENDS_SECONDS:
            return "its machine's time ends"
        return self.idle


@contextmanager
def listening(ends: float | None) -> Iterator[Notices]:
    """Listen within the block. Raises UserError for an unknown REGROW_CLOUD."""
    notices, cloud = Notices(ends), metadata.cloud(os.environ)
    asking = (
        nullcontext()
        if cloud is None
        else background.every(CLOUD_SECONDS, lambda: notices.ask(cloud), name="cloud", wait=0.0)
    )
    with handling(dict.fromkeys(_SIGNALS, notices.handle_signal)), asking:
        yield notices
