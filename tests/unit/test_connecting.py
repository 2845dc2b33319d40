"""Ports whose callers have proved nothing: who says nothing, too much, or it too slowly, keeps
nobody else waiting.
"""

from __future__ import annotations

import queue
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from regrow.apps.station.driver import _DriverAddress
from regrow.apps.station.orders import DriverCommand, DriverMessage, hand_over
from regrow.infra.state import station_record as record
from regrow.tasks.process import connecting
from regrow.tasks.process.connecting import Connecting
from regrow.tasks.process.json_lines import KEY_BYTES, JsonLines


@pytest.fixture
def port() -> Iterator[tuple[int, queue.SimpleQueue[socket.socket]]]:
    """One that lets in who says `k`, and those that it let in."""
    known: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def greet(connection: socket.socket, proved: Callable[[], None]) -> None:
        if connection.recv(1) == b"k":
            proved()
            known.put(connection)

    listener = socket.create_server(("127.0.0.1", 0))
    callers = Connecting(listener, greet)
    thread = threading.Thread(target=callers.accept)
    thread.start()
    yield listener.getsockname()[1], known
    callers.close()
    thread.join()
    while not known.empty():
        known.get().close()


def test_connections_that_say_nothing_keep_nobody_out(
    port: tuple[int, queue.SimpleQueue[socket.socket]],
) -> None:
    with ExitStack() as stack:
        for _ in range(3 * connecting.MOST_UNPROVEN):
            stack.enter_context(socket.create_connection(("127.0.0.1", port[0])))
        with socket.create_connection(("127.0.0.1", port[0]), timeout=30) as right:
            right.sendall(b"k")
            stack.enter_context(port[1].get(timeout=30)).sendall(b"welcome")
            assert right.recv(7) == b"welcome"


def test_who_takes_too_long_in_all_is_hung_up_on_and_who_came_in_is_not(
    port: tuple[int, queue.SimpleQueue[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "GREET_SECONDS", 0.1)
    with (
        closing(socket.create_connection(("127.0.0.1", port[0]), timeout=30)) as right,
        closing(socket.create_connection(("127.0.0.1", port[0]), timeout=30)) as slow,
    ):
        right.sendall(b"k")
        with port[1].get(timeout=30) as inside:
            assert slow.recv(1) == b""
            inside.sendall(b"x")
            assert right.recv(1) == b"x"


def test_a_process_without_descriptors_lets_in_again_when_it_has_some() -> None:
    program = """
import resource, socket, threading
from regrow.tasks.process.connecting import Connecting
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
def greet(connection, proved):
    if connection.recv(1) == b"k":
        proved()
        connection.sendall(b"w")
listener = socket.create_server(("127.0.0.1", 0))
callers = Connecting(listener, greet)
threading.Thread(target=callers.accept, daemon=True).start()
print(listener.getsockname()[1], flush=True)
input()
"""
    with (
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
        ExitStack() as stack,
    ):
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        right = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        right.sendall(b"k")
        assert right.recv(1) == b"w"
        process.kill()


ORDER: dict[str, Any] = {"name": "digits", "folder": b"/\xff", "variables": [(b"A", b"\xff")]}


@pytest.fixture
def post(
    tmp_path: Path,
) -> Iterator[tuple[Path, queue.SimpleQueue[tuple[DriverCommand, JsonLines]]]]:
    """The folder of a station with a driver that waits for an order, and what it is given."""
    (tmp_path / "drivers").mkdir()
    given: queue.SimpleQueue[tuple[DriverCommand, JsonLines]] = queue.SimpleQueue()
    with _DriverAddress(tmp_path, None) as made:
        thread = threading.Thread(target=lambda: given.put(made.await_order()))
        thread.start()
        yield tmp_path, given
        thread.join()
    if made._lock is not None:
        made._lock.close()


def test_a_driver_takes_the_order_with_its_token_whatever_came_before(
    post: tuple[Path, queue.SimpleQueue[tuple[DriverCommand, JsonLines]]],
) -> None:
    folder, given = post
    [(_, known)] = record.drivers(folder, idle=True)
    token = known["token"].encode()
    with ExitStack() as stack:
        for said in (
            b"",
            "ä".encode() * 32 + b"\n",
            b"\xff\n",
            b"x" * (4 * KEY_BYTES),
            token[:-1] + b"\n",
            token,
            secrets.token_bytes(64),
            token + b"\n{}" + b"{" * 100_000,
            token + b"\n[1]\n",
            token + b'\n{"name": 1}\n',
        ):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", known["port"])))
            with suppress(ConnectionError):
                connection.sendall(said)
        threading.Thread(target=lambda: given_answer(given)).start()
        taken = hand_over(folder, ORDER)
    assert taken is not None
    taken[0].close()


def given_answer(given: queue.SimpleQueue[tuple[DriverCommand, JsonLines]]) -> None:
    order, line = given.get()
    assert order == DriverCommand(**ORDER)
    line.send(DriverMessage(kind="taken"))
    line.close()
