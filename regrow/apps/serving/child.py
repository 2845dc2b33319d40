"""One process of a server, from its supervisor's side: the connection and the messages. Nothing is
decided here.
"""

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
from contextlib import closing

from msgspec import structs

from regrow.apps.serving.messages import (
    METRICS_FOLDER,
    WORDS,
    Ask,
    Chosen,
    Counts,
    Loaded,
    Order,
    Poll,
    Ready,
    Refused,
    Role,
    Sample,
    Setup,
    Word,
    Wrong,
)
from regrow.tasks.process.json_lines import JsonLines

SAMPLE_SECONDS = 1.0
"""How long a replica may take to return its last input or its counts."""


class Child:
    """A process, and the connection to it."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        self._line = JsonLines(ours)
        self.answers: queue.Queue[Word | None] = queue.Queue()
        """Its answers; None once it has ended."""
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", _module(setup), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *setup.sockets),
                start_new_session=True,
                env={**os.environ, METRICS_FOLDER: setup.metrics},
            )
        self.say(setup)

    def say(self, order: Order) -> None:
        """Send it an order; if the process is gone, `hear` notices it."""
        self._line.send(order)

    def kill(self) -> None:
        """Kill it; does nothing if it has ended."""
        if self.process.poll() is None:
            self.process.kill()

    def hear(self, heard: Callable[[Word], None]) -> int:
        """Pass its messages to `heard` until it ends; return its exit code."""
        with closing(self._line):
            for word in self._line.messages(WORDS):
                heard(word)
        self.answers.put(None)
        return self.process.wait()

    def forget(self) -> None:
        """Discard earlier messages, so that they are not taken for answers to the next request."""
        while not self.answers.empty():
            if self.answers.get() is None:
                self.answers.put(None)  # the end mark, for the next caller
                return

    def answer(self, seconds: float) -> Word | None:
        """Return its next message; None if it has ended, or is silent for so long."""
        try:
            answer = self.answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        if answer is None:
            self.answers.put(None)
        return answer

    def await_loaded(self, manifest: str, seconds: float) -> Loaded | Refused | None:
        """Return its answer about a checkpoint; None if it has ended, or gives no answer for so
        long.
        """
        deadline = time.monotonic() + seconds
        while (answer := self.answer(deadline - time.monotonic())) is not None:
            if isinstance(answer, Loaded | Refused) and answer.manifest == manifest:
                return answer
        return None

    def sample(self) -> str | None:
        """Return the last input that it has answered, as JSON; None if there is none, or it does
        not reply.
        """
        self.forget()
        self.say(Ask())
        said = self.answer(SAMPLE_SECONDS)
        return said.text if isinstance(said, Sample) else None

    def counts(self) -> dict[Role, tuple[int, int]]:
        """Return, by role, how many requests its model has answered and failed; empty if it does
        not reply.
        """
        self.forget()
        self.say(Poll())
        said = self.answer(SAMPLE_SECONDS)
        return said.of if isinstance(said, Counts) else {}


def ended(code: int) -> str:
    """Describe how a process ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def tried(
    setup: Setup, chosen: Chosen | None, sample: str | None, seconds: float
) -> Refused | Wrong | None:
    """Load a checkpoint in a separate process and let it answer `sample` (JSON; None: the class's
    example), within `seconds`.

    Returns why it is refused, or what is wrong with the class; None if it succeeds. A model that
    hangs or crashes harms only that process. Without a checkpoint, only the class is checked.
    """
    manifest = "" if chosen is None else chosen.manifest
    child = Child(
        structs.replace(
            setup, sockets=[], ray=None, chosen=[] if chosen is None else [chosen], sample=sample
        )
    )
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
    return Refused(
        manifest=manifest, why=f"the process in which it was tried ended ({ended(code)})"
    )


def _module(setup: Setup) -> str:
    if setup.ray is not None:
        return "regrow.apps.serving.deployer"
    return "regrow.apps.serving.replica"
