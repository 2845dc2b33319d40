"""Connection from a process of a server to its supervisor: receives orders, sends messages
(`messages`).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import IO

from regrow.apps.serving import messages
from regrow.apps.serving.messages import Setup, Word, Wrong
from regrow.apps.serving.served import Served
from regrow.apps.serving.users_class import example_of, found
from regrow.tasks.errors import UserCodeError, UserError


class JsonConnection:
    """The connection to the supervisor. Several threads may write to it."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._read: IO[bytes] = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def say(self, word: Word) -> None:
        """Send it a message. If it is gone, `orders` ends."""
        with self._lock:
            try:
                self._socket.sendall(messages.line(word))
            except OSError:
                return

    def orders(self) -> Iterator[messages.Order]:
        """Yield its orders until it is gone."""
        try:
            for text in self._read:
                yield messages.order(text)
        except OSError:
            return

    def kind(self, setup: Setup) -> type[Served] | None:
        """Import the user's class; if it cannot be used, send the reason and return None."""
        try:
            kind = found(setup.model, setup.code)
            example_of(kind, None)
        except UserCodeError as error:
            self.say(Wrong(why=str(error), trace=error.trace))
            return None
        except UserError as error:
            self.say(Wrong(why=str(error)))
            return None
        return kind
