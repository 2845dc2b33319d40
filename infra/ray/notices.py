"""Hearing in a worker process that the process, or its whole node, is about to go away.

SIGTERM means this process (a stopped container, an operator); the cloud's metadata service speaks of the node. What is to
be done about it is the listener's business. `metadata.py` knows what the clouds say; here is who asks them, and when.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from regrow.infra.ray.metadata import Cloud, Unanswered, cloud
from regrow.tasks.errors import UserError
from regrow.tasks.forking import handling

Tell = Callable[[str, bool], None]

POLL_SECONDS = 2.0
"""Between two questions. AWS recommends 5 s at most; GCP and Azure give 30 s notice."""
MOST_POLL_SECONDS = 16.0
"""Between two questions to a service that does not answer."""
GRACE_SECONDS = 30.0
"""How long after a SIGTERM the process may still live, as a container's does by default."""
TERMINATED_EXIT = 128 + signal.SIGTERM

_LOG = logging.getLogger("regrow.notices")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNotices:
    """What the workers of an experiment listen to. Goes to them by pickle; holds nothing of the process.

    `grace` is in seconds.
    """

    grace: float = GRACE_SECONDS

    @contextmanager
    def listen(self, tell: Tell) -> Iterator[None]:
        """Within the block, calls `tell(why, node)` at most once per cause, from a thread of ours.

        node=False: a SIGTERM came, if the block runs in the main thread. A second one, or `grace` seconds in which the
        block does not end, ends the process. node=True: the cloud announced the node's end, maybe before the block.
        """
        with _cloud_notices(tell), _sigterm(tell, self.grace):
            yield


@contextmanager
def _sigterm(tell: Tell, grace: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # The handler interrupts the main thread anywhere, maybe in the middle of a lock that `tell` needs. SimpleQueue.put is
    # what Python promises to work there; hence also a thread that waits already, as starting one takes locks.
    signals: SimpleQueue[bool] = SimpleQueue()
    came = 0

    def handler(*_: Any) -> None:
        nonlocal came
        came += 1
        if came > 1:
            # Not by the handler before: Ray's raises SystemExit, which would look like an error of the user's code.
            os._exit(TERMINATED_EXIT)
        signals.put(True)

    def wait() -> None:
        if signals.get():
            _call(tell, "the worker process was told to end (SIGTERM)", node=False)
            try:
                signals.get(timeout=grace)
            except Empty:
                os._exit(TERMINATED_EXIT)

    waiting = threading.Thread(target=wait, name="regrow-sigterm", daemon=True)
    waiting.start()
    try:
        with handling({signal.SIGTERM: handler}):
            yield
    finally:
        signals.put(False)
        waiting.join()


@contextmanager
def _cloud_notices(tell: Tell) -> Iterator[None]:
    poller = _poller()
    if poller is None:
        yield
        return
    with poller.listening(tell):
        yield


def _call(tell: Tell, why: str, *, node: bool) -> None:
    try:
        tell(why, node)
    except Exception:  # noqa: BLE001 - a listener's failure must not end the listening of others
        _LOG.exception("the notice %r was not taken", why)


class Poller:
    """Asks a cloud while somebody listens, and for all who do. Its thread starts with the first of them and then stays."""

    def __init__(self, source: Cloud, *, every: float = POLL_SECONDS, at_most: float = MOST_POLL_SECONDS) -> None:
        self._source, self._every, self._at_most = source, every, at_most
        self._changed = threading.Condition()
        self._listeners: dict[object, Tell] = {}
        self._told: set[object] = set()
        self._why: str | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self, tell: Tell) -> Iterator[None]:
        """Within the block, `tell` hears of the cause that there is, and of each that comes."""
        key = object()
        with self._changed:
            self._listeners[key] = tell
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="regrow-notices", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._listeners[key]
                self._told.discard(key)

    def _run(self) -> None:
        pause, asked = self._every, 0.0
        while True:
            with self._changed:
                # Trials may be shorter than the pause: a new listener hears what is known, and is no reason to ask again.
                self._changed.wait_for(lambda: self._listeners)
            self._spread()
            if (left := asked + pause - time.monotonic()) > 0:
                with self._changed:
                    self._changed.wait(left)
                continue
            asked = time.monotonic()
            try:
                self._why = self._source.look()
                pause = self._every
            except Unanswered as error:
                pause = min(2 * pause, self._at_most)
                _LOG.debug("the cloud's metadata service does not answer: %s", error)
            except Exception:  # noqa: BLE001 - no answer of a service may end the training
                pause = self._at_most
                _LOG.exception("the cloud's metadata service could not be asked")
            self._spread()

    def _spread(self) -> None:
        with self._changed:
            why = self._why
            if why is None:  # a hibernated machine that woke up again may get another notice
                self._told.clear()
                return
            due = [tell for key, tell in self._listeners.items() if key not in self._told]
            self._told.update(self._listeners)
        for tell in due:
            _call(tell, why, node=True)


_pollers: dict[int, Poller | None] = {}
"""The one poller of a process, by its pid: a forked child has none of its parent's threads."""
_starting = threading.Lock()


def _poller(environment: Mapping[str, str] = os.environ) -> Poller | None:
    """The poller of the process, made when first asked for. None where there is no cloud to ask."""
    me = os.getpid()
    with _starting:
        if me not in _pollers:
            try:
                source = cloud(environment)
            except UserError as error:
                _LOG.error("no notice of the cloud will be heard: %s", error)
                source = None
            _pollers[me] = Poller(source) if source is not None else None
        return _pollers[me]
