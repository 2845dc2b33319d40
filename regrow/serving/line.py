"""The way from a process of a server to its supervisor: orders come, words go (`messages`)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import IO

from regrow.serving import messages
from regrow.serving.messages import Setup, Word, Wrong
from regrow.serving.served import Served
from regrow.serving.users_class import example_of, found
from regrow.tasks.errors import UserCodeError, UserError


class Line:
    """The way to the supervisor. May be written to by several threads."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._read: IO[bytes] = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def say(self, word: Word) -> None:
        """Tells it. One that is gone is noticed where it is listened to."""
        with self._lock:
            try:
                self._socket.sendall(messages.line(word))
            except OSError:
                return

    def orders(self) -> Iterator[messages.Order]:
        """What it says, until it is gone."""
        try:
            for text in self._read:
                yield messages.order(text)
        except OSError:
            return

    def kind(self, setup: Setup) -> type[Served] | None:
        """The user's class; None if it cannot be used, which is said."""
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
