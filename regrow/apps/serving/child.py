"""One process of a server, as its supervisor sees it: connection and messages, no decisions."""

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
from contextlib import ExitStack, closing, suppress

from msgspec import structs

from regrow.apps.serving.messages import (
    MESSAGES,
    METRICS_FOLDER,
    Ask,
    ChildCommand,
    ChildMessage,
    Chosen,
    Loaded,
    Ready,
    Refused,
    SampleAnswered,
    Setup,
    Wrong,
)
from regrow.tasks.process import background
from regrow.tasks.process.json_lines import JsonLines

SAMPLE_SECONDS = 1.0
"""How long a replica may take to tell what it has answered."""


class Child:
    def __init__(self, setup: Setup) -> None:
        """Start it. Raises OSError where no more processes may be started, say."""
        module = f"regrow.apps.serving.{'replica' if setup.ray is None else 'deployer'}"
        ours, theirs = socket.socketpair()
        self._line = JsonLines(ours)
        self.answers: queue.Queue[ChildMessage | None] = queue.Queue()
        """Its answers; None once it has ended."""
        with theirs, ExitStack() as failed:
            failed.callback(self._line.close)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *setup.sockets),
                start_new_session=True,
                env={**os.environ, METRICS_FOLDER: setup.metrics},
            )
            failed.pop_all()
        background.start(self._end, name="child-end")
        self.say(setup)

    def _end(self) -> None:
        """Kill what the user's code has started once the process has ended. What was forked holds
        the connection, and nobody would notice the end.
        """
        self.process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def say(self, order: ChildCommand) -> None:
        """Send it an order; if the process is gone, `receive` notices it."""
        self._line.send(order)

    def receive(self, handle: Callable[[ChildMessage], None]) -> int:
        """Pass its messages to `handle` until it ends; return its exit code."""
        with closing(self._line):
            for message in self._line.messages(MESSAGES):
                handle(message)
        self.answers.put(None)
        return self.process.wait()

    def forget(self) -> None:
        """Discard earlier messages, so that they are not taken for answers to the next request."""
        while not self.answers.empty():
            if self.answers.get() is None:
                self.answers.put(None)  # the end mark, for the next caller
                return

    def answer(self, seconds: float) -> ChildMessage | None:
        """Return its next message; None if it has ended, or is silent for so long."""
        try:
            answer = self.answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        if answer is None:
            self.answers.put(None)
        return answer

    def await_loaded(self, manifest: str, seconds: float) -> Loaded | Refused | None:
        """Return its answer about a checkpoint; None if it has ended, or is silent so long."""
        deadline = time.monotonic() + seconds
        while (answer := self.answer(deadline - time.monotonic())) is not None:
            if isinstance(answer, Loaded | Refused) and answer.manifest == manifest:
                return answer
        return None

    def load(self, chosen: Chosen, seconds: float) -> Loaded | Refused | int | None:
        """Have it load a checkpoint; return its answer, its exit code if it ended instead, or None
        if neither came in time.
        """
        self.forget()
        self.say(chosen)
        if (answer := self.await_loaded(chosen.manifest, seconds)) is not None:
            return answer
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(1.0)  # its socket closes a moment before it is gone
        return None

    def answered(self) -> SampleAnswered:
        """Return what it has answered; nothing if it does not reply."""
        self.forget()
        self.say(Ask())
        reply = self.answer(SAMPLE_SECONDS)
        return reply if isinstance(reply, SampleAnswered) else SampleAnswered()


def ended(code: int) -> str:
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
    messages: list[ChildMessage] = []
    late = threading.Timer(seconds, child.process.kill)
    late.start()
    code = child.receive(messages.append)
    late.cancel()
    for word in messages:
        if isinstance(word, Wrong | Ready):
            return word if isinstance(word, Wrong) else None
    return Refused(
        manifest=manifest, why=f"the process in which it was tried ended ({ended(code)})"
    )
