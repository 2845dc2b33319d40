"""The processes that answer, from their supervisor's side: started, started again, given another model, ended in good order.

Each has a thread here that starts it, hears it, and starts the next one when it is gone. All hold the same listening sockets, so
that connections which wait belong to none of them: what is lost with a killed one are the requests that it had begun.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from regrow.serving import messages
from regrow.serving.messages import Ask, Chosen, Loaded, Ready, Refused, Role, Sample, Setup, Switch, Word, Wrong
from regrow.tasks.errors import UserCodeError, UserError

LOAD_SECONDS = 600.0
"""For a checkpoint to be loaded and tried; one that takes longer is refused."""
SWITCH_SECONDS = 5.0
"""For all to say that they answer with it; they do so in milliseconds."""
SAMPLE_SECONDS = 1.0
"""For a replica to say which input came last."""
END_SECONDS = 25.0
"""For a process to end in good order; what a replica gives requests under way, and a bit more."""
PATIENCE_SECONDS = (0.1, 10.0)
"""Before one that ended is started again: at first, and at most, where it ends again and again."""
STEADY_SECONDS = 10.0
"""One that ran for so long is started again at once."""
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""See metrics.py, which the supervisor does not import."""
_LOG = logging.getLogger("regrow.serving")


class Child:
    """A process, and the way to it."""

    def __init__(self, setup: Setup) -> None:
        self._socket, theirs = socket.socketpair()
        self.answers: queue.Queue[Word | None] = queue.Queue()
        """What it says to what it was asked; None: it is gone."""
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "regrow.serving.replica", str(theirs.fileno())], stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *setup.sockets), start_new_session=True, env={**os.environ, _FOLDER: setup.metrics},
            )
        self.say(setup)

    def say(self, order: messages.Order) -> None:
        """Tells it; one that is gone is noticed where it is heard."""
        try:
            self._socket.sendall(messages.line(order))
        except OSError:
            return

    def hear(self, heard: Callable[[Word], None]) -> int:
        """Hands on what it says until it is gone; returns its exit code."""
        with self._socket, self._socket.makefile("rb") as lines:
            try:
                for text in lines:
                    heard(messages.word(text))
            except OSError:  # it was killed with something unread
                pass
        self.answers.put(None)
        return self.process.wait()

    def forget(self) -> None:
        """What it said until now answers nothing that it is asked from here on."""
        while not self.answers.empty():
            if self.answers.get() is None:
                self.answers.put(None)  # for whoever asks next
                return

    def answer(self, seconds: float) -> Word | None:
        """The next thing that it says; None if it is gone, or silent for so long."""
        try:
            answer = self.answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        if answer is None:
            self.answers.put(None)
        return answer

    def await_loaded(self, manifest: str, seconds: float) -> Loaded | Refused | None:
        """What it says of a checkpoint; None if it is gone, or says nothing of it for so long."""
        deadline = time.monotonic() + seconds
        while (answer := self.answer(deadline - time.monotonic())) is not None:
            if isinstance(answer, Loaded | Refused) and answer.manifest == manifest:
                return answer
        return None

    def sample(self) -> str | None:
        """The last valid input that came to it, as JSON; None for none, and where it does not say."""
        self.forget()
        self.say(Ask())
        said = self.answer(SAMPLE_SECONDS)
        return said.text if isinstance(said, Sample) else None


class Replicas:
    """All of them."""

    def __init__(self, setup: Setup, sockets: Sequence[socket.socket], count: int) -> None:
        self._setup = structs.replace(setup, sockets=[one.fileno() for one in sockets])
        self._count = count
        self._chosen: dict[Role, Chosen] = {}
        self._tried = False
        """Whether a checkpoint was tried already."""
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
                _LOG.error("replica %d: %s; it is started again, with that checkpoint", number, refused.why)
                self._kill(child)
        # All of them at the same time: else who asks twice would meet the new one, and then the old one.
        for child in children.values():
            child.say(Switch(role=chosen.role, manifest=chosen.manifest))
        for child in children.values():
            child.await_loaded(chosen.manifest, SWITCH_SECONDS)
        return None

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
                self._kill(child)
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
                self._began.put(f"the process that answers ended before it was ready ({_ended(code)})")
            if time.monotonic() - began > STEADY_SECONDS:
                patience = PATIENCE_SECONDS[0]
            _LOG.warning("replica %d ended (%s); another one is started", number, _ended(code))
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
            self._kill(child)
            return Refused(manifest=chosen.manifest, why=f"it was not loaded within {LOAD_SECONDS:g} s")
        return Refused(manifest=chosen.manifest, why=f"the process ended while it was loaded ({_ended(code)})")

    def _rehearsed(self, chosen: Chosen) -> Refused | None:
        with self._lock:
            others = list(self._children.values())
        sample = next((text for child in others if (text := child.sample())), None)
        child = Child(structs.replace(self._setup, sockets=[], chosen=[chosen], sample=sample))
        said: list[Word] = []
        late = threading.Timer(LOAD_SECONDS, self._kill, [child])
        late.start()
        code = child.hear(said.append)
        late.cancel()
        refused = next((one for one in said if isinstance(one, Refused)), None)
        if refused is not None or any(isinstance(one, Ready) for one in said):
            return refused
        wrong = next((one for one in said if isinstance(one, Wrong)), None)  # the file was changed meanwhile
        if wrong is not None:
            return Refused(manifest=chosen.manifest, why=wrong.why, trace=wrong.trace)
        return Refused(manifest=chosen.manifest, why=f"the process in which it was tried ended ({_ended(code)})")

    @staticmethod
    def _kill(child: Child) -> None:
        if child.process.poll() is None:
            child.process.kill()


def _ended(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def setup(*, experiment: str, model: str, code: str, scratch: Path, share: float) -> Setup:
    """What all processes of a server have in common. `scratch` is a folder that goes away with it."""
    counted = scratch / "metrics"
    counted.mkdir()
    return Setup(experiment=experiment, model=model, code=code, sockets=[], metrics=str(counted), share=share)
