"""Connections that are slow, silent or half-open end, and those of who asks well do not."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from regrow.infra.machine import addresses, http_server
from regrow.infra.machine.http_server import Server

LARGE = 8 * 1024 * 1024
"""Bytes of an answer: more than a system takes for a client that reads none of it."""


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, unless it is asked not to; the answer is of as many bytes as the path
    says.
    """
    more = scope["path"] != "/unread"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
    size = LARGE if scope["path"] == "/large" else 2
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(size).encode())],
        }
    )
    await send({"type": "http.response.body", "body": b"o" * size})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, int]]:
    """One that looks often, and waits for half a second."""
    monkeypatch.setattr(http_server, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(http_server, "SECONDS", dict.fromkeys(http_server.SECONDS, 0.5))
    monkeypatch.setattr(http_server, "DRAINING_SECONDS", 0.5)
    listening = addresses.listen(None, 0)
    made = Server(answers, grace=5)
    port = listening[0].getsockname()[1]
    thread = threading.Thread(target=made.run, args=(listening,))
    thread.start()
    yield made, port
    made.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def all_said(connection: socket.socket) -> bytes:
    """Until the server ends the connection."""
    said = b""
    try:
        while piece := connection.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-", b"408"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc", b"408"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            b"408",
        ),
        (b"POST /unread HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc", b"200"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT", b"200"),
    ],
    ids=[
        "silent",
        "half a header",
        "half a body",
        "half a chunked body",
        "a body that nobody reads",
        "idle",
        "half a second one",
    ],
)
def test_a_connection_that_is_waited_for_ends(
    server: tuple[Server, int], sent: bytes, status: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", server[1]), timeout=20) as connection:
        connection.sendall(sent)
        said = all_said(connection)
    assert said.split(b" ")[1:2] == ([status] if status else [])


@pytest.mark.parametrize("path", [b"/", b"/unread", b"/large"])
def test_what_is_no_http_is_refused_in_silence(
    caplog: pytest.LogCaptureFixture, server: tuple[Server, int], path: bytes
) -> None:
    of_uvicorn = logging.getLogger("uvicorn.error")
    of_uvicorn.setLevel(logging.NOTSET)  # as Prefect sets it
    with socket.create_connection(("127.0.0.1", server[1]), timeout=20) as connection:
        head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n")
        assert all_said(connection).startswith(b"HTTP/1.1 400 ")
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_client_that_does_not_take_its_answer_is_let_go(server: tuple[Server, int]) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", server[1]))
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until_gone = threading.Event()
        while not until_gone.wait(0.05):
            if not server[0].server_state.connections:
                until_gone.set()
        assert len(all_said(connection)) < LARGE


def test_where_too_many_come_the_one_that_is_waited_for_longest_gives_way(
    server: tuple[Server, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SECONDS", dict.fromkeys(http_server.SECONDS, 60.0))
    monkeypatch.setattr(http_server, "most_connections", lambda: 2)
    silent = [socket.create_connection(("127.0.0.1", server[1]), timeout=20) for _ in range(2)]
    asking = http.client.HTTPConnection("127.0.0.1", server[1], timeout=20)
    asking.request("GET", "/")
    assert asking.getresponse().read() == b"oo"
    assert silent[0].recv(1) == b"", "the first one"
    asking.close()
    for one in silent:
        one.close()


def test_while_it_drains_the_next_request_is_answered_as_the_last_one(
    server: tuple[Server, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "DRAINING_SECONDS", 20.0)  # on a busy machine, too
    connection = http.client.HTTPConnection("127.0.0.1", server[1], timeout=20)
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"oo"
    server[0].should_exit = True
    while True:  # until it listens no more
        try:
            socket.create_connection(("127.0.0.1", server[1]), timeout=20).close()
        except ConnectionError:  # refused, or reset in its queue
            break
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert (answer.read(), answer.headers["Connection"]) == (b"oo", "close")


def test_a_connection_that_waits_to_be_taken_is_not_lost_where_it_stops_to_listen() -> None:
    listening = addresses.listen(None, 0)
    port = listening[0].getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    taken: list[socket.socket] = []
    shared = listening[0].dup()
    takes = threading.Timer(0.2, lambda: taken.append(shared.accept()[0]))
    takes.start()
    addresses.stop_listening(listening, 20)
    takes.join()
    shared.close()
    taken[0].sendall(b"x")
    assert client.recv(1) == b"x"
    taken[0].close()
    client.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=20)
