"""Whether the leader reaches an agent: it calls each one before that joins its cluster.

Ray's nodes connect to each other in both directions. An agent that the leader does not reach, as
behind NAT, would join and then lose all that is sent to it.
"""

from __future__ import annotations

import fcntl
import hmac
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from regrow.tasks.errors import UserError
from regrow.tasks.process import background

CONNECT_SECONDS = 3.0
"""Seconds for a connection between two machines."""
CUT_SECONDS = 25.0
"""Seconds without the leader after which a node is of no use any more, also if Ray has not found it
dead yet. TCP sends again at intervals that double, so that Ray's connections find that the network
is back as late again, and Ray's health check gives a node 65 s (measured, Ray 2.60).
"""
_MOST_BYTES = 128
_FAR = "192.0.2.1"
"""An address reserved for documentation; nothing is sent there."""
_SIOCGIFADDR = 0x8915
"""Linux's request for the address of an interface."""


def own_address(towards: str = _FAR) -> str:
    """Return this machine's address as others see it: that of the interface towards `towards`,
    without a route to there that of its first interface; 127.0.0.1 for a machine without a network.
    """
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                asked = struct.pack("256s", name.encode()[:15])  # the longest name
                address = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, asked)[20:24])
                if not address.startswith("127."):
                    return address
    return "127.0.0.1"


def refuses(address: str) -> bool:
    """Return whether a machine answers that nothing listens at host:port."""
    try:
        _connect(address).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def answers(address: str) -> bool:
    """Return whether something listens at host:port."""
    try:
        _connect(address).close()
    except OSError:
        return False
    return True


def call(address: str, port: int, greeting: str) -> bool:
    """Call an agent as its leader. Returns whether it could be reached."""
    try:
        with _connect(f"{address}:{port}") as connection:
            connection.sendall(greeting.encode())
    except OSError:
        return False
    return True


class Contact:
    """Whether a cluster at host:port stays within reach. `probe` runs in a thread.

    Attributes:
        cut: seconds for which it was out of reach until it answered again, if those were
            CUT_SECONDS or more; 0: it never was.

    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._answered, self._away = time.monotonic(), False
        self.cut = 0.0

    def probe(self) -> None:
        """Connect to it, and take note of the end of a time out of reach."""
        if not answers(self._address):
            self._away = True
            return
        now = time.monotonic()
        if self._away and now - self._answered >= CUT_SECONDS:
            self.cut = now - self._answered
        self._answered, self._away = now, False


class Calls:
    """Leaders' calls, as they came in. `term`: the newest term whose leader called; 0: none."""

    def __init__(self, socket_: socket.socket, nonce: str) -> None:
        self.port: int = socket_.getsockname()[1]
        self.nonce, self.term = nonce, 0

    def accept(self, greeting: bytes) -> None:
        """Note the term of a caller that knows the nonce."""
        nonce, _, term = greeting.decode(errors="replace").partition(" ")
        if hmac.compare_digest(nonce.encode(), self.nonce.encode()) and term.isdecimal():
            self.term = max(self.term, int(term))


@contextmanager
def waiting(address: str, port: int, nonce: str) -> Iterator[Calls]:
    """Wait for calls at a port (0: any free one) within the block. Raises UserError if the port or
    the address cannot be used.
    """
    try:
        listening = socket.create_server((address, port))
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]
        raise UserError(
            f"nothing can listen at {address}:{port} ({why}); name an address of this"
            " machine by --address, or other ports by --ports"
        ) from error
    calls, over = Calls(listening, nonce), threading.Event()

    def listen() -> None:
        while not over.is_set():
            try:
                connection, _ = listening.accept()
                with connection:
                    calls.accept(_read(connection))
            except OSError:  # of this caller's, too few descriptors, or the end of the block
                over.wait(0.1)

    background.start(listen, name="calls")
    try:
        yield calls
    finally:
        over.set()
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _read(connection: socket.socket) -> bytes:
    """Return what a caller says until it has ended, within limits. Raises OSError."""
    received, deadline = b"", time.monotonic() + 1.0  # others wait meanwhile
    while len(received) < _MOST_BYTES and (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        if not (more := connection.recv(_MOST_BYTES - len(received))):
            break
        received += more
    return received


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS)


def greeting(nonce: str, term: int) -> str:
    """Return what the leader of a term says to an agent."""
    return f"{nonce} {term}"
