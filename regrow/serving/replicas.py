"""The processes that answer, from their supervisor's side: started, started again, given another model, ended in good order.

Each has a thread here that starts it, hears it, and starts the next one when it is gone. All hold the same listening sockets, so
that connections which wait belong to none of them: what is lost with a killed one are the requests that it had begun.
"""

from __future__ import annotations

import logging
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence

from msgspec import structs

from regrow.search.rollout import Tally
from regrow.serving.child import Child, ended, tried
from regrow.serving.messages import Chosen, Loaded, Ready, Refused, Role, Setup, Switch, Withdraw, Word, Wrong
from regrow.tasks.errors import UserCodeError, UserError

LOAD_SECONDS = 600.0
"""For a checkpoint to be loaded and tried; one that takes longer is refused."""
SWITCH_SECONDS = 5.0
"""For all to say that they answer with it; they do so in milliseconds."""
END_SECONDS = 25.0
"""For a process to end in good order; what a replica gives requests under way, and a bit more."""
PATIENCE_SECONDS = (0.1, 10.0)
"""Before one that ended is started again: at first, and at most, where it ends again and again."""
STEADY_SECONDS = 10.0
"""One that ran for so long is started again at once."""
_LOG = logging.getLogger("regrow.serving")


class Replicas:
    """All of them."""

    def __init__(self, setup: Setup, sockets: Sequence[socket.socket], count: int) -> None:
        self._setup = structs.replace(setup, sockets=[one.fileno() for one in sockets])
        self._count = count
        self.losses = 0
        """How many ended without having been told to."""
        self._chosen: dict[Role, Chosen] = {}
        self._tried = setup.ray is not None
        """Whether a checkpoint was tried already; on Ray, where a trial takes longer, the first one is tried, too."""
        self._children: dict[int, Child] = {}
        self._lock = threading.Lock()
        """Between a process that starts with what is chosen, and a choice that is told to all that were started."""
        self._threads: list[threading.Thread] = []
        self._ending = threading.Event()
        self._began: queue.Queue[Ready | Wrong | str] = queue.Queue()

    def start(self, *, stop: threading.Event) -> None:
        """Starts them; returns when one answers, or when `stop` is set.

        Raises UserError and UserCodeError for a class that cannot be used.
        """
        for number in range(1, self._count + 1):
            thread = threading.Thread(target=self._keep, args=(number,), daemon=True, name=f"replica {number}")
            thread.start()
            self._threads.append(thread)
        while not stop.is_set():
            try:
                first = self._began.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(first, Ready):
                return
            self._ending.set()
            if isinstance(first, str):
                raise UserError(first)
            raise UserCodeError(first.why, first.trace) if first.trace else UserError(first.why)

    def offer(self, chosen: Chosen) -> Refused | None:
        """Tries a checkpoint, and has all answer with it; returns why not if it is refused: then all stays as it was.

        It is tried in a process of its own: a model that hangs, or takes its process with it, harms nobody there. But for the
        first one, as nobody is answered yet: that one begins sooner without.
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
        with self._lock:  # those that start from now on begin with it
            self._chosen[chosen.role] = chosen
            children = dict(self._children)
        for number, child in sorted(children.items()):
            if child is first:  # it has it
                continue
            if (refused := self._loaded(child, chosen)) is not None and not self._ending.is_set():
                _LOG.error("%s: %s; it is started again, with that checkpoint", self._told(number), refused.why)
                child.kill()
        # All of them at the same time: else who asks twice would meet the new one, and then the old one.
        for child in children.values():
            child.say(Switch(role=chosen.role, manifest=chosen.manifest))
        for child in children.values():
            child.await_loaded(chosen.manifest, SWITCH_SECONDS)
        return None

    def withdraw(self, role: Role) -> None:
        """Has nobody answer in that role any more."""
        with self._lock:
            self._chosen.pop(role, None)
            children = list(self._children.values())
        for child in children:
            child.say(Withdraw(role=role))

    def tallies(self) -> dict[Role, Tally]:
        """By role: how the models do, of the processes that are there now."""
        with self._lock:
            children = list(self._children.values())
        found: dict[Role, Tally] = {}
        for child in children:
            for role, (answered, failed) in child.counts().items():
                before = found.get(role, Tally())
                found[role] = Tally(answered=before.answered + answered, failed=before.failed + failed)
        return found

    def end(self) -> None:
        """Ends all in good order; returns when they are gone."""
        self._ending.set()
        with self._lock:
            children = list(self._children.values())
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        for child in children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
        for thread in self._threads:
            thread.join(5.0)

    # ---- one of them ---------------------------------------------------------------------------------------------------

    def _keep(self, number: int) -> None:
        patience = PATIENCE_SECONDS[0]
        ready = False
        while True:
            with self._lock:
                if self._ending.is_set():
                    return
                child = Child(structs.replace(self._setup, chosen=list(self._chosen.values())))
                self._children[number] = child
            began = time.monotonic()

            def heard(word: Word, child: Child = child) -> None:
                nonlocal ready
                if isinstance(word, Ready | Wrong):
                    ready = ready or isinstance(word, Ready)
                    self._began.put(word)
                else:
                    child.answers.put(word)

            code = child.hear(heard)
            if self._ending.is_set():
                return
            if not ready:
                self._began.put(f"the process that answers ended before it was ready ({ended(code)})")
            if time.monotonic() - began > STEADY_SECONDS:
                patience = PATIENCE_SECONDS[0]
            self.losses += 1
            _LOG.warning("%s ended (%s); another one is started", self._told(number), ended(code))
            self._ending.wait(patience)
            patience = min(2 * patience, PATIENCE_SECONDS[1])

    def _loaded(self, child: Child, chosen: Chosen) -> Refused | None:
        child.forget()
        child.say(chosen)
        if (answer := child.await_loaded(chosen.manifest, LOAD_SECONDS)) is not None:
            return answer if isinstance(answer, Refused) else None
        try:
            code = child.process.wait(1.0)  # it is heard to be gone a moment before it is
        except subprocess.TimeoutExpired:
            child.kill()
            return Refused(manifest=chosen.manifest, why=f"it was not loaded within {LOAD_SECONDS:g} s")
        return Refused(manifest=chosen.manifest, why=f"the process ended while it was loaded ({ended(code)})")

    def _deployed(self, chosen: Chosen) -> Refused | None:
        """On Ray: one process has all replicas take it. Where that ends, as its cluster is lost, the next one begins with it."""
        with self._lock:
            before, child = dict(self._chosen), self._children[1]
            self._chosen[chosen.role] = chosen
        child.forget()
        child.say(chosen)
        answer = child.await_loaded(chosen.manifest, LOAD_SECONDS)
        if late := answer is None:
            try:
                child.process.wait(1.0)  # it is heard to be gone a moment before it is
                return None
            except subprocess.TimeoutExpired:  # such as where the cluster has no room for a replica
                answer = Refused(manifest=chosen.manifest, why=f"Ray Serve did not get it to run within {LOAD_SECONDS:g} s")
        if isinstance(answer, Loaded):
            return None
        with self._lock:
            self._chosen = before
        if late:
            child.kill()  # the next one deploys what was there before
        return answer

    def _rehearsed(self, chosen: Chosen) -> Refused | None:
        with self._lock:
            others = list(self._children.values())
        sample = None if self._setup.ray else next((text for child in others if (text := child.sample())), None)
        wrong = tried(self._setup, chosen, sample, LOAD_SECONDS)
        if isinstance(wrong, Wrong):  # the file was changed meanwhile
            return Refused(manifest=chosen.manifest, why=wrong.why, trace=wrong.trace)
        return wrong

    def _told(self, number: int) -> str:
        """A process, for people."""
        return f"replica {number}" if self._setup.ray is None else "the process that deploys on Ray"
