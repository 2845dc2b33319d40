"""A user's own cluster before it is joined: what is on its way is waited for, and people hear what
that is.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar

import pytest

from regrow.infra.machine.awaiting import announced
from regrow.infra.ray import private, probing
from regrow.tasks.errors import UserError

Server = Callable[[Callable[[socket.socket], object]], str]
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture
def server() -> Iterator[Server]:
    """An address at which the first connection is answered so."""
    listeners, threads, done = list[socket.socket](), list[threading.Thread](), threading.Event()

    def begin(answer: Callable[[socket.socket], object]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            connection, _ = listener.accept()
            # The other side may have given up: a reset, a broken pipe, or no connection any more.
            with connection, suppress(OSError):
                answer(connection)
                done.wait(10)

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield begin
    done.set()
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.close()


def probed(address: str) -> list[str]:
    told: list[str] = []
    probing.probe(address, named_by="RAY_ADDRESS", step=told.append)
    return told


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda there: None, "nothing there speaks Ray within 0 s"),
        (lambda there: there.sendall(b"HTTP/1.1 400 Bad Request\r\n"), "nothing there speaks Ray;"),
        (lambda there: there.shutdown(socket.SHUT_RDWR), "nothing there speaks Ray;|reset"),
    ],
)
def test_what_is_no_cluster_is_known_by_its_first_word(
    answer: Callable[[socket.socket], object],
    why: str,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probing, "SILENT_SECONDS", 0.01)
    with pytest.raises(UserError, match=f"({why}).*correct or unset RAY_ADDRESS"):
        probed(server(answer))


def test_each_thing_that_is_waited_for_is_told_once_it_takes_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(private, "ask_head", asked.append)

    def slowly(there: socket.socket) -> None:
        for byte in SETTINGS:
            there.sendall(bytes([byte]))

    address = server(slowly)
    told = probed(address)
    assert asked == [address]
    assert told == [
        "it is not connected yet",
        "it is connected, and has said nothing yet",
        "its head is there, and has not answered yet",
    ]


def test_nothing_is_told_of_a_cluster_that_answers_at_once() -> None:
    told: list[str] = []
    with announced("the Ray cluster at x:1", told.append) as step:
        step("it is not connected yet")
    assert told == []
    late = threading.Event()

    of_the_flow: ContextVar[str] = ContextVar("of_the_flow", default="no flow")
    of_the_flow.set("the flow")

    def say(line: str) -> None:
        told.append(line)
        context.append(of_the_flow.get())
        late.set()

    context: list[str] = []
    with announced("the Ray cluster at x:1", say, after=0.0) as step:
        assert late.wait(10)
        assert context == ["the flow"]
        step("it is connected")
    assert told[1:] == ["waiting for the Ray cluster at x:1: it is connected"]
