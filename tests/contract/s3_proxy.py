"""A proxy between a store and its S3 server that does to chosen requests what networks and servers
do.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Harm(Enum):
    """What happens to a request."""

    CUT_REQUEST = auto()  # a reset in the middle of its body; the server never sees it
    CUT_ANSWER = auto()  # a reset in the middle of the answer's body
    LOSE_ANSWER = auto()  # the server did it, and nobody hears
    HANG = auto()  # no answer, ever


class Where(Enum):
    """How far a request that is held has come."""

    BEFORE = auto()  # the server has nothing of it
    HALF = auto()  # the server has half of its body
    AFTER = auto()  # the server has done it, and nobody hears


@dataclass
class Fault:
    """`what`: a harm, or the status and code that is answered. For the next `times` requests of a
    method.
    """

    what: Harm | tuple[int, str]
    times: int
    method: str
    query: str


class Hold:
    """Requests of a method whose paths end with `path`: each that comes is held there until all of
    them continue, or are dropped.
    """

    def __init__(self, method: str, path: str, where: Where) -> None:
        self._method, self._path, self.where = method, path, where
        self.came = threading.Event()
        """Set as soon as there is one."""
        self._over = threading.Event()
        self._dropped = False

    def takes(self, request: BaseHTTPRequestHandler) -> bool:
        """Whether this request is one of them."""
        path = request.path.partition("?")[0]
        return (
            not self._over.is_set()
            and request.command == self._method
            and path.endswith(self._path)
        )

    def wait(self) -> bool:
        """Holds one; whether it is to continue."""
        self.came.set()
        return self._over.wait(300.0) and not self._dropped

    def release(self) -> None:
        """All of them continue, also where the one who asked is no more."""
        self._over.set()

    def drop(self) -> None:
        """They come no further than they are."""
        self._dropped = True
        self._over.set()


class Proxy:
    """Forwards all requests, but for the faults that are due and those that are held; keeps a list
    of what was asked.
    """

    def __init__(self, port: int) -> None:
        self.server_port = port
        self.requests: list[str] = []
        self._faults: list[Fault] = []
        self._holds: list[Hold] = []
        self._lock = threading.Lock()
        self.closing = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(ConnectionError, TimeoutError):
                    self.raw_requestline = self.rfile.readline(65537)
                    if self.raw_requestline and self.parse_request():
                        proxy.serve(self)
                        return
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def harm(
        self, what: Harm | tuple[int, str], times: int = 1, *, method: str = "", query: str = ""
    ) -> None:
        """Lets the next requests with this method and this in their query (any: "") suffer."""
        self._faults.append(Fault(what, times, method, query))

    def hold(self, method: str, path: str, where: Where = Where.BEFORE) -> Hold:
        """Holds the requests of a method whose paths end so."""
        self._holds.append(hold := Hold(method, path, where))
        return hold

    def heal(self) -> None:
        """No request suffers from now on."""
        self._faults.clear()

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        fault = self._due(request)
        length = int(request.headers.get("Content-Length", 0))
        if fault is Harm.CUT_REQUEST:
            request.rfile.read(length // 2)
            return _reset(request)
        body = request.rfile.read(length)
        if fault is Harm.HANG:
            self.closing.wait(60.0)
            return _reset(request)
        if isinstance(fault, tuple):
            status, code = fault
            told = (
                b""
                if status == 200
                else f"<Error><Code>{code}</Code><Message>made up</Message></Error>".encode()
            )
            return _answer(request, status, {"Content-Type": "application/xml"}, told)
        hold = next((hold for hold in self._holds if hold.takes(request)), None)
        if hold is not None and hold.where is Where.BEFORE and not hold.wait():
            return _reset(request)
        upstream = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        try:
            if hold is not None and hold.where is Where.HALF:
                upstream.putrequest(
                    request.command, request.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in request.headers.items():
                    upstream.putheader(name, value)
                upstream.endheaders(body[: length // 2])
                if not hold.wait():
                    return _reset(request)
                upstream.send(body[length // 2 :])
            else:
                upstream.request(request.command, request.path, body, dict(request.headers))
            answer = upstream.getresponse()
            content = answer.read()
        finally:
            upstream.close()
        if fault is Harm.LOSE_ANSWER or (
            hold is not None and hold.where is Where.AFTER and not hold.wait()
        ):
            return _reset(request)
        _answer(
            request,
            answer.status,
            dict(answer.getheaders()),
            content,
            half=fault is Harm.CUT_ANSWER,
        )
        return None

    def _due(self, request: BaseHTTPRequestHandler) -> Harm | tuple[int, str] | None:
        with self._lock:
            self.requests.append(f"{request.command} {request.path}")
            for fault in self._faults:
                if (
                    fault.times
                    and fault.method in ("", request.command)
                    and fault.query in request.path
                ):
                    fault.times -= 1
                    return fault.what
        return None

    def close(self) -> None:
        self.closing.set()
        for hold in self._holds:
            hold.drop()
        self._http.shutdown()
        self._http.server_close()


def _answer(
    request: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str],
    content: bytes,
    *,
    half: bool = False,
) -> None:
    request.send_response_only(status)
    for name, value in headers.items():
        if name.lower() not in ("content-length", "connection", "transfer-encoding"):
            request.send_header(name, value)
    length = headers.get("Content-Length", "0") if request.command == "HEAD" else str(len(content))
    request.send_header("Content-Length", length)
    request.end_headers()
    request.wfile.write(content[: len(content) // 2] if half else content)
    request.wfile.flush()
    if half:
        _reset(request)


def _reset(request: BaseHTTPRequestHandler) -> None:
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.close_connection = True
    request.connection.close()
    # The handler flushes and closes once more.
    request.wfile = open("/dev/null", "wb")  # noqa: SIM115


@contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    """A proxy before the server on a port."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
