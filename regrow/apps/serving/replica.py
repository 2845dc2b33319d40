"""`python -m regrow.apps.serving.replica FD`: a process that answers requests, or only tries a
checkpoint. Started by the supervisor.

FD is the socket to the supervisor (`messages`). The token is passed in the environment, and removed
from it before any of the user's code is imported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from regrow.apps.serving.app import answers
from regrow.apps.serving.line import begin
from regrow.apps.serving.messages import (
    COMMANDS,
    Chosen,
    Loaded,
    Ready,
    Refused,
    SampleAnswered,
    Setup,
    Switch,
    Withdraw,
)
from regrow.apps.serving.metrics import Metrics
from regrow.apps.serving.models import LoadedCheckpoint, Models
from regrow.apps.serving.served import Served
from regrow.apps.serving.users_class import Computing, example_of
from regrow.infra.machine.http_server import Server
from regrow.tasks.output.traces import in_a_line, user_trace
from regrow.tasks.process import background
from regrow.tasks.process.json_lines import JsonLines

GRACE_SECONDS = 20.0
"""Time for pending requests when it is asked to end."""
BACKLOG = 1024
"""Maximum number of connections that wait for a process to accept them."""


class ReplicaServer(Server):
    """The HTTP server without its signal handlers. Calls `listening` once it accepts."""

    def __init__(self, app: FastAPI, listening: Callable[[], None]) -> None:
        # A low `backlog` makes each process accept one connection of a burst at a time, so that
        # other processes get some, too.
        super().__init__(app, grace=int(GRACE_SECONDS), backlog=1)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handling to this module."""
        yield


class Replica:
    def __init__(self, line: JsonLines, setup: Setup, kind: type[Served]) -> None:
        self.line, self.setup, self.kind = line, setup, kind
        self.models, self.metrics = Models(setup.share), Metrics()
        self.answers = answers(kind, self.models, self.metrics, setup.experiment, setup.gate)

    def load(self, chosen: Chosen, sample: str | None) -> Computing | None:
        """Load and try the checkpoint; if it fails, send the reason and return None."""
        try:
            return Computing(
                self.kind, Path(chosen.folder), chosen.config, example_of(self.kind, sample)
            )
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            self.line.send(
                Refused(manifest=chosen.manifest, why=in_a_line(error), trace=user_trace(error))
            )
            return None

    async def serve(self, secret: bytes) -> None:
        """Answer requests until asked to end."""
        loop = asyncio.get_running_loop()
        self.metrics.reserve()
        sockets = [socket.socket(fileno=descriptor) for descriptor in self.setup.sockets]
        # Before accepting connections: they wait meanwhile, and none fails.
        for chosen in self.setup.chosen:
            if (computing := self.load(chosen, self.setup.sample)) is not None:
                self.models.switch(chosen.role, self._model(chosen, computing))

        def listening() -> None:
            for each in sockets:
                each.listen(BACKLOG)  # asyncio has set the queue's length to its `backlog`
            self.line.send(Ready())

        server = ReplicaServer(self.answers.app(secret, beyond=self.setup.beyond), listening)

        def end() -> None:
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        background.start(self._obey, loop, end, name="orders")
        await server.serve(sockets)

    def _model(self, chosen: Chosen, computing: Computing) -> LoadedCheckpoint:
        # as if asked to end: pending requests of the other model are answered
        leave = partial(os.kill, os.getpid(), signal.SIGTERM)
        return LoadedCheckpoint(chosen, computing, self.kind, self.metrics.batch, leave)

    def _hold(self, chosen: Chosen, computing: Computing) -> None:
        self.models.next[chosen.role] = self._model(chosen, computing)
        self.line.send(Loaded(manifest=chosen.manifest))

    def _release(self, switch: Switch) -> None:
        self.models.release(switch.role, switch.manifest)
        self.line.send(Loaded(manifest=switch.manifest))

    def _obey(self, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
        """Carry out the supervisor's orders, in a thread, so that loading blocks no request."""
        for order in self.line.messages(COMMANDS):
            if isinstance(order, Chosen):
                if (computing := self.load(order, self.answers.sample)) is not None:
                    loop.call_soon_threadsafe(self._hold, order, computing)
            elif isinstance(order, Switch):
                loop.call_soon_threadsafe(self._release, order)
            elif isinstance(order, Withdraw):
                loop.call_soon_threadsafe(self.models.withdraw, order.role)
            else:
                self.line.send(
                    SampleAnswered(sample=self.answers.sample, counts=self.models.counts())
                )
        loop.call_soon_threadsafe(end)  # the supervisor is gone


def main() -> None:
    """Run until SIGTERM, or until the supervisor is gone."""
    if (begun := begin()) is None:
        return
    line, setup, kind, secret = begun
    replica = Replica(line, setup, kind)
    if not setup.sockets:
        if all(replica.load(chosen, setup.sample) is not None for chosen in setup.chosen):
            line.send(Ready())
    else:
        asyncio.run(replica.serve(secret))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a user's thread that still computes has no request to answer


if __name__ == "__main__":
    main()
