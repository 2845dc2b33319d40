"""The live view of a running experiment: a pure function of its log.

`board` folds the log and keeps what the view needs, `sections` arranges it for a terminal of any
size, `screen` draws it, `viewer` chooses between the live screen, lines and events.
`text` has the texts of all commands.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from rich.console import Console

from regrow.infra.log.log import Log
from regrow.infra.log.subscription import Batch, Subscription
from regrow.infra.ray.coordinator_log import CoordinatorLog
from regrow.infra.state.notes import NONE, Notes
from regrow.show.live.terminal import Events, PlainConsole
from regrow.show.live.viewer import Viewer
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports.store import Store

REFRESH_SECONDS = (0.5, 0.5)
LAST_SECONDS = 5.0
"""Seconds that the end of the view waits for the last events."""

__all__ = ["Live", "Viewer"]


class Live:
    """Follows an experiment of this process through its coordinator. Arguments as of Viewer."""

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool = False,
        events: Events | None = None,
        notes: Callable[[], Notes] = lambda: NONE,
        viewer: Viewer | None = None,
    ) -> None:
        """Make the viewer; `viewer`: one that shows it elsewhere than on the console."""
        self.viewer = viewer or Viewer(console, quiet=quiet, events=events, notes=notes)
        self._silent = quiet and events is None
        self._events = events
        self._log: CoordinatorLog | None = None
        self._thread: threading.Thread | None = None

    def announce(self, line: str) -> None:
        """Print a line that the user should read; with events, to standard error."""
        if self._events is not None:
            PlainConsole(stderr=True, soft_wrap=True).print(line)
        else:
            self.viewer.say(line)

    def warn(self, line: str) -> None:
        """Print a line that the user must read, to standard error if nothing else is printed."""
        if self._silent:
            PlainConsole(stderr=True, soft_wrap=True).print(line, markup=False)
        else:
            self.announce(line)

    @contextmanager
    def watch(self, coordinator: Any) -> Iterator[None]:
        """Show the experiment within the block."""
        if self._silent:
            yield
            return
        # a second coordinator's log, after the cluster was lost, is read from its start again
        self.viewer.restart()
        self._log = CoordinatorLog(coordinator)
        over = threading.Event()
        following = Subscription(self._log, REFRESH_SECONDS).in_background(
            partial(self._show_batch, coordinator, over), "live", patience=LAST_SECONDS
        )
        try:
            with self.viewer.showing(), following as self._thread:
                yield
        finally:
            over.set()

    def finish(self, store: Store) -> None:
        """Show, from the log itself, the events that the coordinator could no longer send. Waits
        for a reader that has not taken the events before; a signal then ends the process.
        """
        if self._thread is not None and self._events is not None:
            with _signals_end():
                while self._thread.is_alive() and self._events.writing:
                    self._thread.join(LAST_SECONDS)
            self._thread.join(LAST_SECONDS)
        if self._log is not None and self._thread is not None and not self._thread.is_alive():
            for segment in Log.read(store, self._log.after):
                self.viewer.apply([segment])

    def _show_batch(self, coordinator: Any, over: threading.Event, batch: Batch) -> None:
        """Show a batch. `over`: the coordinator is about to end, and must be asked no more, as Ray
        would wait for it.
        """
        import ray

        from regrow.infra.ray import cluster

        self.viewer.apply(batch.segments)
        if over.is_set():  # a reader has kept it waiting
            raise RegrowError("the session has ended; the rest is read from the log")
        if batch.more:
            return
        self.viewer.progress()
        with suppress(ray.exceptions.GetTimeoutError):  # the coordinator is busy
            trouble = cluster.get(coordinator.trouble.remote(), timeout=3.0)
            self.viewer.trouble = trouble or ""


@contextmanager
def _signals_end() -> Iterator[None]:
    """Within the block, have signals that ask this process to end do so, as by default."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
