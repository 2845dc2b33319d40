"""One process of a server, from its supervisor's side: the way to it, and what it says. Nothing is decided here."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from msgspec import structs

from regrow.serving import messages
from regrow.serving.messages import (
    METRICS_FOLDER,
    Ask,
    Chosen,
    Counts,
    Loaded,
    Poll,
    Ready,
    Refused,
    Role,
    Sample,
    Setup,
    Word,
    Wrong,
)

SAMPLE_SECONDS = 1.0
"""For a replica to say which input came last, or how its models do."""


class Child:
    """A process, and the way to it."""

    def __init__(self, setup: Setup) -> None:
        self._socket, theirs = socket.socketpair()
        self.answers: queue.Queue[Word | None] = queue.Queue()
        """What it says to what it was asked; None: it is gone."""
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", _module(setup), str(theirs.fileno())], stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *setup.sockets), start_new_session=True,
                env={**os.environ, METRICS_FOLDER: setup.metrics},
            )
        self.say(setup)

    def say(self, order: messages.Order) -> None:
        """Tells it; one that is gone is noticed where it is heard."""
        try:
            self._socket.sendall(messages.line(order))
        except OSError:
            return

    def kill(self) -> None:
        """Ends it at once; nothing if it has ended."""
        if self.process.poll() is None:
            self.process.kill()

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

    def counts(self) -> dict[Role, tuple[int, int]]:
        """By role: requests that its model has answered and failed; nothing where it does not say."""
        self.forget()
        self.say(Poll())
        said = self.answer(SAMPLE_SECONDS)
        return said.of if isinstance(said, Counts) else {}


def ended(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def tried(setup: Setup, chosen: Chosen | None, sample: str | None, seconds: float) -> Refused | Wrong | None:
    """Has a process of its own load a checkpoint and answer `sample` (JSON; None: the class's example), within `seconds`.

    Returns why it is refused, or what is wrong with the class; None if all is well. A model that hangs, or takes its process with
    it, harms nobody there. Without a checkpoint the class alone is looked at.
    """
    manifest = "" if chosen is None else chosen.manifest
    child = Child(structs.replace(setup, sockets=[], ray=None, chosen=[] if chosen is None else [chosen], sample=sample))
    said: list[Word] = []
    late = threading.Timer(seconds, child.kill)
    late.start()
    code = child.hear(said.append)
    late.cancel()
    for word in said:
        if isinstance(word, Refused | Wrong):
            return word
        if isinstance(word, Ready):
            return None
    return Refused(manifest=manifest, why=f"the process in which it was tried ended ({ended(code)})")


def _module(setup: Setup) -> str:
    if setup.ray is not None:
        return "regrow.serving.deployer"
    return "regrow.serving.replica"
