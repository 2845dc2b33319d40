"""An HTTP server whose connections all end: by timeouts, and idle ones when it drains.

What uvicorn does not limit: it waits forever for the rest of a request, and for a client that does
not read its answer. And when it shuts down, it closes idle connections at once, so that a request
which is just being sent on one is lost.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from asyncio import BufferedProtocol
from contextlib import suppress
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

READ_BYTES = 8 * 1024
"""Bytes read at a time: tiny chunks then delay others by 20 ms, not 0.5 s."""
LOOK_SECONDS = 0.5
"""Seconds between two checks of all connections."""
SECONDS = {"headers": 15.0, "body": 60.0, "answer": 60.0, "idle": 65.0, "rest": 5.0}
"""Timeouts of a connection in seconds, by phase: until a request's headers are complete, until its
body is, until its answer is read by the client, until the next request comes, and until the rest of
a body that was answered already is read.
"""
DRAINING_SECONDS = 2.0
"""Seconds for the next, last, request on a connection once the server drains."""
SPARE_FILES = 320
"""Open files of this process that connections leave for everything else."""
MOST_CONNECTIONS = 4096
_LOG = logging.getLogger("regrow.http")
"""For the errors of applications. Warnings concern requests of arbitrary clients, and would fill a
disk or a terminal. uvicorn's own logger has the level that the import of Prefect gives it.
"""
_LOG.setLevel(logging.ERROR)


class Connection(H11Protocol, BufferedProtocol):
    """One connection to the server."""

    unlimited: ClassVar[frozenset[str]] = frozenset()
    """Phases without a timeout."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.logger = _LOG
        self._buffer = bytearray(READ_BYTES)
        self._waits_for: tuple[str, object] = ("headers", None)
        self.since = time.monotonic()
        """Start of the current wait, on the clock of `time.monotonic`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Accept the connection. If there are too many, abort the one that has waited longest: a
        new one would find no descriptor.
        """
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            waiting = [
                one
                for one in self.connections
                if isinstance(one, Connection) and one.phase() in ("headers", "idle")
            ]
            min(waiting, key=lambda one: one.since, default=self).abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        """See READ_BYTES."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` new bytes in the buffer."""
        self.data_received(bytes(memoryview(self._buffer)[:nbytes]))

    def phase(self) -> str:
        """Return what is awaited, a key of SECONDS; "" while the application computes an answer."""
        if self.transport.get_write_buffer_size():
            return "answer"
        if self.conn.their_state is h11.SEND_BODY:
            return "rest" if self.cycle is not None and self.cycle.response_complete else "body"
        if self.cycle is not None and not self.cycle.response_complete:
            return ""
        return "headers" if self.cycle is None or self.conn.trailing_data[0] else "idle"

    def end_if_late(self, now: float) -> None:
        """End the connection if it has exceeded its timeout."""
        phase = self.phase()
        if (waits_for := (phase, self.cycle)) != self._waits_for:
            self._waits_for, self.since = waits_for, now
        draining = CLOSE_HEADER in self.server_state.default_headers
        seconds = (
            DRAINING_SECONDS if draining and phase in ("headers", "idle") else SECONDS.get(phase)
        )
        if seconds is None or phase in self.unlimited or now - self.since < seconds:
            return
        if phase in ("headers", "body") and (self.cycle is None or not self.cycle.response_started):
            self._refuse()
        self.abort()

    def abort(self) -> None:
        """End the connection at once. An answer that is being computed for it is dropped."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse(self) -> None:
        """Send status 408 if that is still possible."""
        if self.phase() == "headers" and not self.conn.trailing_data[0]:  # no request was begun
            return
        self._leave_application()
        text = b"the request did not come in time\n"
        start = h11.Response(
            status_code=408,
            reason=b"Request Timeout",
            headers=[
                (b"content-type", b"text/plain"),
                (b"content-length", str(len(text)).encode()),
                CLOSE_HEADER,
            ],
        )
        try:
            for event in (start, h11.Data(data=text), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            return

    def _leave_application(self) -> None:
        """Drop what the application still answers."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, if that is still possible. The application may be answering the
        beginning of it.
        """
        self._leave_application()
        with suppress(h11.LocalProtocolError):
            super().send_400_response(msg)
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Do nothing on uvicorn's call: `end_if_late` handles idle connections."""

    def shutdown(self) -> None:
        """Make the current answer the last one, or, if the server drains, the next one."""
        if CLOSE_HEADER not in self.server_state.default_headers:
            super().shutdown()
            return
        self.since = time.monotonic()
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.default_headers = [*self.cycle.default_headers, CLOSE_HEADER]


class TransferConnection(Connection):
    """A connection for clients with a password, whose transfers of files may take long."""

    unlimited = frozenset({"body", "answer"})


class Server(uvicorn.Server):
    """uvicorn's server with these connections."""

    def __init__(
        self,
        app: Any,
        *,
        grace: int,
        connection: type[Connection] = Connection,
        drains: bool = True,
        **given: Any,
    ) -> None:
        """Configure uvicorn.

        Args:
            app: the ASGI application.
            grace: seconds for requests in progress when the server shuts down.
            connection: class of its connections.
            drains: whether idle connections may send one more request during the shutdown.
            given: further settings of uvicorn's.

        """
        given = {"ws": "none", "lifespan": "off", "backlog": _backlog(), **given}
        given |= {"http": connection, "log_level": "error", "access_log": False}
        given |= {"server_header": False, "proxy_headers": False}
        super().__init__(uvicorn.Config(app, **given, timeout_graceful_shutdown=grace))
        self._drains = drains
        self._checking: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and to check connections."""
        await super().startup(sockets)
        self._checking = asyncio.create_task(self._check_connections())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and answer requests in progress. If the server drains, also
        answer what still arrives on open connections.
        """
        if self._drains:
            self.server_state.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]
        await super().shutdown(sockets)

    async def _check_connections(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            for one in list(self.server_state.connections):
                if isinstance(one, Connection):
                    one.end_if_late(now)


def most_connections() -> int:
    """Return the most connections of this process at a time."""
    return max(
        SPARE_FILES,
        min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES, MOST_CONNECTIONS),
    )


def _backlog() -> int:
    """Return how many connections the loop accepts at a time: each needs a file descriptor before
    it is checked, and may be aborted for others.
    """
    return max(
        1, min(2048, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - most_connections()) // 3)
    )
