"""`python -m regrow.serving.replica FD`: a process that answers requests, or only tries a checkpoint. The supervisor starts it.

FD is the socket over which the two speak (`messages`). The token comes by the environment, and is taken from it before any of
the user's code is imported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from regrow.serving.access import digest
from regrow.serving.app import answers
from regrow.serving.line import Line
from regrow.serving.messages import TOKEN, Chosen, Counts, Loaded, Poll, Ready, Refused, Sample, Setup, Switch, Withdraw
from regrow.serving.metrics import Metrics
from regrow.serving.models import Model, Models
from regrow.serving.said import log_to_terminal
from regrow.serving.served import Served
from regrow.serving.users_class import Computing, example_of
from regrow.tasks.traces import in_a_line, user_trace

GRACE_SECONDS = 20.0
"""For requests that are under way when it is told to end."""
BACKLOG = 1024
"""Connections that wait until a process takes them."""


class Server(uvicorn.Server):
    """uvicorn's server, whose signals are ours. `listening` is called once it takes connections."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen."""
        await super().startup(sockets)
        self._listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves them alone."""
        yield


class Replica:
    """What the process has."""

    def __init__(self, line: Line, setup: Setup, kind: type[Served]) -> None:
        self.line, self.setup, self.kind = line, setup, kind
        self.models, self.metrics = Models(setup.share), Metrics()
        self.answers = answers(kind, self.models, self.metrics, setup.experiment, setup.gate)

    def load(self, chosen: Chosen, sample: str | None) -> Computing | None:
        """The checkpoint, loaded and tried; None if it is refused, which is said."""
        try:
            return Computing(self.kind, Path(chosen.folder), chosen.config, example_of(self.kind, sample))
        except BaseException as error:  # noqa: BLE001 - the user's code, whatever it does
            self.line.say(Refused(manifest=chosen.manifest, why=in_a_line(error), trace=user_trace(error)))
            return None

    async def serve(self, secret: bytes | None) -> None:
        """Answers until told to end."""
        loop = asyncio.get_running_loop()
        sockets = [socket.socket(fileno=descriptor) for descriptor in self.setup.sockets]
        for chosen in self.setup.chosen:  # before it takes the first connection: those wait meanwhile, and none fails
            if (computing := self.load(chosen, self.setup.sample)) is not None:
                self.models.switch(chosen.role, self._model(chosen, computing))
        config = uvicorn.Config(
            self.answers.app(secret), log_level="warning", access_log=False, server_header=False, proxy_headers=False,
            lifespan="off", timeout_graceful_shutdown=int(GRACE_SECONDS), timeout_keep_alive=65,
            backlog=1,  # of a burst of connections each process takes one at a time, so that others get some, too
        )

        def listening() -> None:
            for each in sockets:
                each.listen(BACKLOG)  # asyncio has set the queue's length to its own `backlog`
            self.line.say(Ready())

        server = Server(config, listening)

        def end() -> None:
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        threading.Thread(target=self._obey, args=(loop, end), daemon=True, name="orders").start()
        await server.serve(sockets)

    def _model(self, chosen: Chosen, computing: Computing) -> Model:
        return Model(chosen, computing, self.kind, self.metrics.batch)

    def _hold(self, chosen: Chosen, computing: Computing) -> None:
        self.models.next[chosen.role] = self._model(chosen, computing)
        self.line.say(Loaded(manifest=chosen.manifest))

    def _release(self, switch: Switch) -> None:
        self.models.release(switch.role, switch.manifest)
        self.line.say(Loaded(manifest=switch.manifest))

    def _obey(self, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
        """In a thread: what is loaded here keeps nobody waiting."""
        for order in self.line.orders():
            if isinstance(order, Chosen):
                if (computing := self.load(order, self.answers.sample)) is not None:
                    loop.call_soon_threadsafe(self._hold, order, computing)
            elif isinstance(order, Switch):
                loop.call_soon_threadsafe(self._release, order)
            elif isinstance(order, Withdraw):
                loop.call_soon_threadsafe(self.models.withdraw, order.role)
            elif isinstance(order, Poll):
                self.line.say(Counts(of=self.models.counts()))
            else:
                self.line.say(Sample(text=self.answers.sample))
        loop.call_soon_threadsafe(end)  # the supervisor is gone


def main() -> None:
    """Until SIGTERM, or until the supervisor is gone."""
    log_to_terminal()
    token = os.environ.pop(TOKEN, "").strip() or None
    line = Line(int(sys.argv[1]))
    setup = next(line.orders(), None)
    if not isinstance(setup, Setup):
        return
    if (kind := line.kind(setup)) is None:
        return
    replica = Replica(line, setup, kind)
    if not setup.sockets:
        if all(replica.load(chosen, setup.sample) is not None for chosen in setup.chosen):
            line.say(Ready())
    else:
        asyncio.run(replica.serve(digest(token) if token else None))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a thread of the user's that still computes has nobody to answer


if __name__ == "__main__":
    main()
