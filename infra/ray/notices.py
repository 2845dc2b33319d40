"""Notices in a worker process that the process, or its whole node, is about to go away.

SIGTERM and SIGINT concern this process (a memory daemon, an operator, a stopped container); the
cloud's metadata service reports about the node. The listener decides what to do. `metadata.py`
knows what the clouds answer; this module decides who asks them, and when.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from regrow.infra.ray.labels import NODE
from regrow.infra.ray.metadata import Cloud, Unanswered, cloud
from regrow.tasks.errors import UserError
from regrow.tasks.process import background
from regrow.tasks.process.forking import handling

Notify = Callable[[str, bool], None]

POLL_SECONDS = 2.0
"""Seconds between two questions. AWS recommends 5 s at most; GCP and Azure give 30 s notice."""
MOST_POLL_SECONDS = 16.0
"""Longest pause in seconds between two questions to a service that does not answer."""
GRACE_SECONDS = 30.0
"""Seconds that the process may still live after a SIGTERM, as a container by default."""
TERMINATED_EXIT = 128 + signal.SIGTERM

_LOG = logging.getLogger("regrow.notices")


def ignore_sigterm() -> None:
    """Ignore SIGTERM in this worker from now on, if an agent has its node: Slurm and systemd send
    it to all processes of a job, and the trials that save need the experiment's own actors. The
    agent ends them.
    """
    if NODE in os.environ:
        # Actors are made in a thread, where Python's own function refuses. Not SIG_IGN, which
        # programs that it starts would inherit: a function that does nothing with the number.
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGTERM, ctypes.cast(libc.abs, ctypes.c_void_p))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNotices:
    """What the workers of an experiment listen to. Pickled for them, so it holds nothing of this
    process. `grace`: in seconds.
    """

    grace: float = GRACE_SECONDS

    @contextmanager
    def listen(self, notify: Notify) -> Iterator[None]:
        """Call `notify(why, node)` within the block, once per cause at most, from a thread of ours.

        node=False: a SIGTERM or SIGINT arrived, if the block runs in the main thread. A second one
        ends the process, unless an agent has its node; so does a block that has not ended `grace`
        seconds later. node=True: the cloud announced the node's end, possibly before the block
        began.
        """
        me = os.getpid()
        with _starting:
            if me not in _pollers:
                try:
                    source = cloud(os.environ)
                except UserError as error:
                    _LOG.error("notices of the cloud are not received: %s", error)
                    source = None
                _pollers[me] = Poller(source) if source is not None else None
            poller = _pollers[me]
        with poller.listening(notify) if poller else nullcontext(), _signals(notify, self.grace):
            yield


@contextmanager
def _signals(notify: Notify, grace: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # The handler interrupts the main thread anywhere, possibly while it holds a lock that `notify`
    # needs. Python guarantees that SimpleQueue.put works there. The waiting thread is started
    # beforehand, as starting one takes locks.
    signals: SimpleQueue[int] = SimpleQueue()
    came = 0

    def handler(number: int, _: Any) -> None:
        nonlocal came
        came += 1
        if came == 1:
            signals.put(number)
        elif NODE not in os.environ:  # Slurm sends it twice to what `srun` has started
            # Not by the earlier handler: Ray's raises SystemExit, which would look like an error in
            # the user's code.
            os._exit(TERMINATED_EXIT)

    def wait() -> None:
        if number := signals.get():
            cause = "the worker process was terminated by another program than regrow"
            why = f"{cause} ({signal.Signals(number).name}), as batch systems and memory daemons do"
            _call(notify, why, node=False)
            try:
                signals.get(timeout=grace)
            except Empty:
                os._exit(TERMINATED_EXIT)

    waiting = background.start(wait, name="sigterm")
    try:
        with handling({signal.SIGTERM: handler, signal.SIGINT: handler}):
            yield
    finally:
        signals.put(0)
        waiting.join()


def _call(notify: Notify, why: str, *, node: bool) -> None:
    try:
        notify(why, node)
    except Exception:  # noqa: BLE001 - a failing listener must not stop notices to others
        _LOG.exception("the notice %r was not taken", why)


class Poller:
    """Asks a cloud for all listeners, by a thread that starts with the first one and stays."""

    def __init__(
        self, source: Cloud, *, every: float = POLL_SECONDS, at_most: float = MOST_POLL_SECONDS
    ) -> None:
        self._source, self._every, self._at_most = source, every, at_most
        self._changed = threading.Condition()
        self._listeners: dict[object, Notify] = {}
        self._notified: set[object] = set()
        self._why: str | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self, notify: Notify) -> Iterator[None]:
        """Call `notify` within the block: for the cause that is known, and for each new one."""
        key = object()
        with self._changed:
            self._listeners[key] = notify
            if self._thread is None:
                self._thread = background.start(self._run, name="notices")
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._listeners[key]
                self._notified.discard(key)

    def _run(self) -> None:
        pause, asked = self._every, 0.0
        while True:
            with self._changed:
                # Trials may be shorter than the pause: a new listener gets what is known, without
                # another question.
                self._changed.wait_for(lambda: self._listeners)
            self._spread()
            if (left := asked + pause - time.monotonic()) > 0:
                with self._changed:
                    self._changed.wait(left)
                continue
            asked = time.monotonic()
            try:
                self._why = self._source.poll()
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
            if why is None:  # a hibernated machine that wakes up may get another notice
                self._notified.clear()
                return
            due = [notify for key, notify in self._listeners.items() if key not in self._notified]
            self._notified.update(self._listeners)
        for notify in due:
            _call(notify, why, node=True)


_pollers: dict[int, Poller | None] = {}
"""The one poller of a process, by its pid: a forked child does not have its parent's threads."""
_starting = threading.Lock()
