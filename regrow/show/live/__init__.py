"""The live view of a running experiment: a pure function of its log.

`board` folds the log and keeps what the view needs, `layout` and `sections` arrange it for a
terminal of any size, `screen` draws it, `viewer` chooses between the live screen, lines and events.
`text` has the texts of all commands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from regrow.infra.log.log import Log, full
from regrow.infra.state.notes import NONE, Notes
from regrow.show.live.output import Events
from regrow.show.live.terminal import PlainConsole
from regrow.show.live.viewer import Viewer
from regrow.tasks.ports.store import Store

REFRESH_SECONDS = 0.5

__all__ = ["Live", "Viewer"]


class Live:
    """Follows an experiment that this process runs, through its coordinator. Arguments as those of
    Viewer.
    """

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool = False,
        events: Events | None = None,
        notes: Callable[[], Notes] = lambda: NONE,
        viewer: Viewer | None = None,
    ) -> None:
        """Make the viewer; `viewer`: one that shows the experiment elsewhere than on
        the console.
        """
        self.viewer = viewer or Viewer(console, quiet=quiet, events=events, notes=notes)
        self._silent = quiet and events is None
        self._events = events is not None
        self._after = 0
        """The last segment that was followed."""
        self._thread: threading.Thread | None = None

    def announce(self, line: str) -> None:
        """Print a line that the user should read; with events, to standard error."""
        if self._events:
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
        self._after = 0
        done = threading.Event()
        thread = threading.Thread(
            target=self._follow, args=(coordinator, done), name="regrow-live", daemon=True
        )
        self._thread = thread
        with self.viewer.showing():
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join(timeout=5.0)

    def finish(self, store: Store) -> None:
        """Show, from the log itself, the events that the coordinator could no longer send."""
        if self._thread is not None and not self._thread.is_alive():
            for segment in Log.read(store, self._after):
                self.viewer.take([segment])

    def _follow(self, coordinator: Any, done: threading.Event) -> None:
        import ray

        from regrow.infra.ray import cluster

        while True:
            last = done.is_set()
            try:
                trouble = cluster.get(coordinator.trouble.remote(), timeout=3.0)
                segments = cluster.get(
                    coordinator.follow.remote(self._after, 0.0 if last else 1.0), timeout=3.0
                )
            except ray.exceptions.GetTimeoutError:  # the coordinator is busy
                if last:
                    return
                continue
            except (ray.exceptions.RayError, cluster.ClusterLost):
                return
            self.viewer.trouble = trouble or ""
            self.viewer.take(segments)
            self._after = segments[-1][0] if segments else self._after
            if full(segments):
                continue  # a long log, whose next segments exist already
            if last:
                return
            self.viewer.progress()
            done.wait(REFRESH_SECONDS)
