"""Rank 0's listening socket: each rank proves that it knows the key and introduces itself before it
counts.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from regrow.tasks.group.wire import Hello, Refused, Wire
from regrow.tasks.process import background
from regrow.tasks.process.connecting import Connecting

HELLO_BYTES = 1 << 16
"""Size limit of a rank's first message."""
_LOG = logging.getLogger("regrow.trial")


class RendezvousServer:
    """Listening socket for the other ranks. A connection that sends nothing, or something else,
    blocks no other.
    """

    def __init__(self, address: str, key: bytes) -> None:
        self._key = key
        self._callers: Connecting | None = None
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._door = socket.create_server((address, 0), family=family)

    @property
    def port(self) -> int:
        """Port of the socket."""
        port: int = self._door.getsockname()[1]
        return port

    def let_in(self, hear: Callable[[Wire, Hello], object]) -> None:
        """Call `hear` in a separate thread for each rank that connects; it raises Refused for a
        rank that is not expected.
        """

        def greet(connection: socket.socket, proved: Callable[[], None]) -> None:
            try:
                wire = Wire(connection)
                wire.greet(self._key, first=False)
                hello = wire.receive(most=HELLO_BYTES)
                if not isinstance(hello, Hello):
                    raise Refused("it does not say who it is")
                proved()
                with connection:
                    hear(wire, hello)
            except (OSError, Refused) as error:
                _LOG.debug("a connection was not let in: %s", error)

        self._callers = Connecting(self._door, greet)
        background.start(self._callers.accept, name="door")

    def close(self) -> None:
        """Accept no further connections."""
        if self._callers is not None:
            self._callers.close()
        self._door.close()
