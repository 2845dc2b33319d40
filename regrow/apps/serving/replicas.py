"""The answering processes, from their supervisor's side: started, restarted, given another model,
shut down gracefully.

Each has a thread here that starts it, reads its messages, and restarts it when it ends. All hold
the same listening sockets, so that waiting connections belong to none of them: a killed process
loses only the requests that it had begun.
"""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Sequence

from msgspec import structs

from regrow.apps.serving.child import Child, ended, tried
from regrow.apps.serving.messages import (
    ChildMessage,
    Chosen,
    Loaded,
    Ready,
    Refused,
    Role,
    SampleAnswered,
    Setup,
    Switch,
    Withdraw,
    Wrong,
)
from regrow.infra.machine import addresses
from regrow.infra.machine.supervised import Backoff
from regrow.search.rollout import RequestCounts
from regrow.tasks.process import background

LOAD_SECONDS = 600.0
"""Time limit for loading and trying a checkpoint; a slower one is refused."""
SWITCH_SECONDS = 5.0
"""Time limit for all processes to confirm a switch; they do so in milliseconds."""
END_SECONDS = 25.0
"""Time limit for a graceful shutdown, a bit more than a replica's GRACE_SECONDS."""
PATIENCE_SECONDS = (0.1, 10.0)
"""Delay before one that ended is restarted: at first, and at most, if it ends repeatedly."""
STEADY_SECONDS = 10.0
"""One that ran for this long gets the short delay again."""
_LOG = logging.getLogger("regrow.apps.serving")


class Replicas:
    """All answering processes of a server."""

    def __init__(self, setup: Setup, sockets: Sequence[socket.socket], count: int) -> None:
        self._setup = structs.replace(setup, sockets=[one.fileno() for one in sockets])
        self._sockets = sockets
        self._count = count
        self.losses = 0
        """How many ended unexpectedly."""
        self._chosen: dict[Role, Chosen] = {}
        self._tried = setup.ray is not None
        """Whether the next checkpoint is rehearsed in a separate process first. On Ray, where a
        failed deployment takes longer, the first one is, too.
        """
        self._children: dict[int, Child] = {}
        self._lock = threading.Lock()
        """Orders the start of a process with the choice, and a new choice's way to all."""
        self._threads: list[threading.Thread] = []
        self._ending = threading.Event()
        self._began: queue.Queue[Ready | Wrong] = queue.Queue()

    def start(self, *, stop: threading.Event) -> None:
        """Start the processes; return when one answers, or when `stop` is set.

        Raises UserError and UserCodeError for a class that cannot be used.
        """
        for number in range(1, self._count + 1):
            self._threads.append(background.start(self._keep, number, name=f"replica-{number}"))
        while not stop.is_set():
            try:
                first = self._began.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(first, Ready):
                return
            self._ending.set()
            raise first.error()

    def offer(self, chosen: Chosen) -> Refused | None:
        """Try a checkpoint, and switch all processes to it; if it is refused, return the reason and
        change nothing.

        It is tried in a separate process: a model that hangs or crashes does no harm there. The
        first checkpoint is not, since no request is answered yet, and the server is ready sooner.
        """
        first = None
        if self._tried:
            if (refused := self._rehearsed(chosen)) is not None:
                return refused
            if self._setup.ray is not None:
                return self._deployed(chosen)
        else:
            self._tried = True
            with self._lock:
                first = self._children[min(self._children)]
            if (refused := self._loaded(first, chosen)) is not None:
                return refused
        with self._lock:  # processes that start from now on load it first
            self._chosen[chosen.role] = chosen
            children = dict(self._children)
        for number, child in sorted(children.items()):
            if child is first:  # it has loaded it already
                continue
            if (refused := self._loaded(child, chosen)) is not None and not self._ending.is_set():
                _LOG.error(
                    "%s: %s; it is started again, with that checkpoint",
                    self._label(number),
                    refused.why,
                )
                child.process.kill()
        # All at the same time: otherwise a client that asks twice could meet the new model, and
        # then the old one.
        for child in children.values():
            child.say(Switch(role=chosen.role, manifest=chosen.manifest))
        for child in children.values():
            child.await_loaded(chosen.manifest, SWITCH_SECONDS)
        return None

    def withdraw(self, role: Role) -> None:
        """Remove the model in that role from all processes."""
        with self._lock:
            self._chosen.pop(role, None)
        for child in self._present():
            child.say(Withdraw(role=role))

    def tallies(self) -> dict[Role, RequestCounts]:
        """Return the models' counts by role, summed over the current processes."""
        found: dict[Role, RequestCounts] = {}
        for child in self._present():
            for role, (answered, failed) in child.answered().counts.items():
                before = found.get(role, RequestCounts())
                found[role] = RequestCounts(
                    answered=before.answered + answered, failed=before.failed + failed
                )
        return found

    def end(self) -> None:
        """Shut all down gracefully, and wait for it. First, no more connections are accepted."""
        self._ending.set()
        children = self._present()
        addresses.stop_listening(self._sockets)
        for child in children:
            child.process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for child in children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
        for thread in self._threads:
            thread.join(5.0)

    # ---- one of them

    def _keep(self, number: int) -> None:
        backoff = Backoff(*PATIENCE_SECONDS, steady=STEADY_SECONDS)
        ready = False
        while True:
            began = time.monotonic()
            with self._lock:
                if self._ending.is_set():
                    return
                try:
                    child = Child(structs.replace(self._setup, chosen=list(self._chosen.values())))
                    self._children[number] = child
                except OSError as error:  # such as too many processes
                    why = str(error)
                else:
                    why = ""
            if why:
                _LOG.warning("%s cannot be started: %s", self._label(number), why)
                self._ending.wait(backoff.after(0.0))
                continue

            def handle(word: ChildMessage, child: Child = child) -> None:
                nonlocal ready
                if isinstance(word, Loaded | Refused | SampleAnswered):
                    child.answers.put(word)
                else:
                    ready = ready or isinstance(word, Ready)
                    self._began.put(word)

            code = child.receive(handle)
            if self._ending.is_set():
                return
            if not ready:
                why = f"the process that answers ended before it was ready ({ended(code)})"
                self._began.put(Wrong(why=why))
            self.losses += 1
            _LOG.warning("%s ended (%s); another one is started", self._label(number), ended(code))
            self._ending.wait(backoff.after(time.monotonic() - began))

    def _loaded(self, child: Child, chosen: Chosen) -> Refused | None:
        answer = child.load(chosen, LOAD_SECONDS)
        if isinstance(answer, Loaded | Refused):
            return answer if isinstance(answer, Refused) else None
        why = f"it was not loaded within {LOAD_SECONDS:g} s"
        if answer is None:
            child.process.kill()
        else:
            why = f"the process ended while it was loaded ({ended(answer)})"
        return Refused(manifest=chosen.manifest, why=why)

    def _deployed(self, chosen: Chosen) -> Refused | None:
        """On Ray, let the deployer switch all replicas. If it ends because its cluster is lost, the
        next deployer starts with the new choice.
        """
        with self._lock:
            before, child = dict(self._chosen), self._children[1]
            self._chosen[chosen.role] = chosen
        answer = child.load(chosen, LOAD_SECONDS)
        if isinstance(answer, Loaded | int):
            return None
        with self._lock:
            self._chosen = before
        if answer is None:  # for example if the cluster has no space for a replica
            child.process.kill()  # the next deployer deploys the previous choice
            why = f"Ray Serve did not get it to run within {LOAD_SECONDS:g} s"
            answer = Refused(manifest=chosen.manifest, why=why)
        return answer

    def _rehearsed(self, chosen: Chosen) -> Refused | None:
        samples = (child.answered().sample for child in self._present())
        sample = None if self._setup.ray else next(filter(None, samples), None)
        wrong = tried(self._setup, chosen, sample, LOAD_SECONDS)
        if wrong is None or isinstance(wrong, Refused):
            return wrong
        # the file was changed meanwhile
        return Refused(manifest=chosen.manifest, why=wrong.why, trace=wrong.trace)

    def _present(self) -> list[Child]:
        with self._lock:
            return list(self._children.values())

    def _label(self, number: int) -> str:
        return f"replica {number}" if self._setup.ray is None else "the process that deploys on Ray"
