"""Messages between two processes as lines of JSON over a connected socket, which also shows each
that the other has ended. The messages are msgspec structs; nothing else is decoded.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

import msgspec

MOST_BYTES = 64 << 20
"""Maximum length of a line: a specification and the variables of a shell."""
KEY_BYTES = 256
"""Maximum length of the line with a key: no more is read of a peer that has not proved it."""
Received = TypeVar("Received")


class PeerGone(ConnectionError):
    """The other side has disconnected, or has sent something other than a message."""


class JsonLines:
    """One side of a connection. Any thread may send, one receives. The socket's timeout applies."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._sending = threading.RLock()  # a signal's handler may send, too

    def send(self, message: object) -> bool:
        """Send a message; return False if the peer has disconnected. What no UTF-8 can have, as a
        part of a file's name, arrives as a question mark.
        """
        try:
            line = msgspec.json.encode(message)
        except UnicodeEncodeError:
            plain = json.dumps(msgspec.to_builtins(message), ensure_ascii=False)
            line = plain.encode(errors="replace")
        return self._send(line)

    def prove(self, key: str) -> bool:
        """Send a shared key; return False if the peer has disconnected."""
        return self._send(key.encode())

    def proves(self, key: str) -> bool:
        """Return whether the next line is the key, compared in constant time. Raises PeerGone."""
        return hmac.compare_digest(self._line(KEY_BYTES), key.encode())

    def receive(self, decoder: msgspec.json.Decoder[Received], most: int = MOST_BYTES) -> Received:
        """Return the next message, of at most `most` bytes. Raises PeerGone."""
        try:
            return decoder.decode(self._line(most))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise PeerGone(str(error)) from None

    def messages(
        self, decoder: msgspec.json.Decoder[Received], most: int = MOST_BYTES
    ) -> Iterator[Received]:
        """Yield the messages until the peer is gone."""
        with suppress(PeerGone):
            while True:
                yield self.receive(decoder, most)

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def _send(self, line: bytes) -> bool:
        try:
            with self._sending:
                self._socket.sendall(line + b"\n")
        except OSError:
            return False
        return True

    def _line(self, most: int) -> bytes:
        try:
            line = self._file.readline(most)
        except OSError as error:  # it was killed with unread data, or took too long
            raise PeerGone(str(error)) from None
        if not line.endswith(b"\n"):
            raise PeerGone("its line is too long, or cut off" if line else "it has disconnected")
        return line[:-1]
