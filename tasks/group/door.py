"""Where the other ranks come in at rank 0: each proves that it knows the key, and says who it is, before it counts."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from regrow.tasks.group.wire import Hello, Refused, Wire

GREET_SECONDS = 10.0
"""How long who connects may take to prove that it knows the key."""
_LOG = logging.getLogger("regrow.trial")


class Door:
    """Where the others connect, from the beginning. Who says nothing, or something else, keeps nobody waiting."""

    def __init__(self, address: str, key: bytes) -> None:
        self._key, self._closed = key, False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._door = socket.create_server((address, 0), family=family)

    @property
    def port(self) -> int:
        """Where it is."""
        port: int = self._door.getsockname()[1]
        return port

    def let_in(self, hear: Callable[[Wire, Hello], object]) -> None:
        """Calls `hear` in a thread of its own for each that comes in; it raises Refused for one that is not expected."""
        threading.Thread(target=self._let_in, args=(hear,), name="regrow-door", daemon=True).start()

    def close(self) -> None:
        """Nobody comes in any more."""
        self._closed = True
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # who waits in `accept` would not notice a close
        self._door.close()

    def _let_in(self, hear: Callable[[Wire, Hello], object]) -> None:
        while not self._closed:
            try:
                connection, _ = self._door.accept()
            except ConnectionError:  # it has gone away meanwhile
                continue
            except OSError:  # closed
                return
            threading.Thread(target=self._greet, args=(connection, hear), name="regrow-rank", daemon=True).start()

    def _greet(self, connection: socket.socket, hear: Callable[[Wire, Hello], object]) -> None:
        with connection:
            try:
                wire = Wire(connection)
                wire.limit(GREET_SECONDS)
                wire.greet(self._key, first=False)
                hello = wire.receive()
                if not isinstance(hello, Hello):
                    raise Refused("it does not say who it is")
                hear(wire, hello)
            except (OSError, Refused) as error:
                _LOG.debug("somebody was not let in: %s", error)
