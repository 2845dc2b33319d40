"""Listener for callers that still have to prove who they are: each has a time limit, and the oldest
are dropped if there are too many.

A caller that keeps connections open, or sends a byte now and then, blocks no other caller. The
greeter defines the proof.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from regrow.tasks.process import background

MOST_UNPROVEN = 64
"""Connections that have not proved anything yet, at most. A caller takes milliseconds."""
GREET_SECONDS = 10.0
"""Seconds in which a caller must prove who it is."""
_LOOK_SECONDS = 0.5
"""Seconds between two checks for callers that take longer."""
Greet = Callable[[socket.socket, Callable[[], None]], None]
"""Handles a caller in a separate thread, and calls the given function once the caller has proved
who it is: from then on the greeter owns the connection. Without that call it is closed.
"""


class Connecting:
    """Accepts connections on `listener` until it is closed."""

    def __init__(self, listener: socket.socket, greet: Greet) -> None:
        self._listener, self._greet = listener, greet
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._unproven: dict[socket.socket, float] = {}
        """Connections and the times at which they were made, oldest first."""

    def accept(self) -> None:
        """Accept connections; returns once this is closed."""
        self._listener.settimeout(_LOOK_SECONDS)
        while not self._closed.is_set():
            self._part(MOST_UNPROVEN - 1)
            try:
                connection, _ = self._listener.accept()
            except (TimeoutError, ConnectionError):  # no caller, or one that has disconnected
                continue
            except (
                OSError
            ):  # closed, or out of descriptors: dropping the unproven connections frees some
                self._part(0)
                self._closed.wait(_LOOK_SECONDS)
                continue
            with self._lock:
                self._unproven[connection] = time.monotonic()
            background.start(self._serve, connection, name="caller")

    def close(self) -> None:
        """Stop accepting. Proven connections stay open."""
        self._closed.set()
        with suppress(OSError):
            # a thread that waits in `accept` would not notice a close
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._part(0)

    def _part(self, most: int) -> None:
        """Shut down connections that take too long, and the oldest beyond `most`."""
        with self._lock:
            for place, (connection, began) in enumerate(self._unproven.items()):
                if len(self._unproven) - place > most or time.monotonic() - began > GREET_SECONDS:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        def proved() -> None:
            with self._lock:
                if self._unproven.pop(connection, None) is None:
                    raise ConnectionResetError("it took too long")

        try:
            self._greet(connection, proved)
        except OSError:  # the caller has disconnected
            pass
        finally:
            with self._lock:
                known = self._unproven.pop(connection, None) is None
            if not known:
                connection.close()
