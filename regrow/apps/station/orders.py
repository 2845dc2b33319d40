"""Protocol between a client and an idle driver: lines of JSON over loopback, after the driver's
token.

A connection carries one order. The driver answers `taken`, then `said` for each line that the user
should read, then `ended` or `failed`. The client may send `signal` in between; if the client
disconnects, the driver continues.
"""

from __future__ import annotations

import hmac
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.log.log import CorruptLog
from regrow.infra.state import station_record as record
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.ports.store import Unavailable

TOKEN_BYTES = 256
"""Maximum length of the first line: no more is read before the peer has proved the token."""
SIGNAL_BYTES = 1024
MOST_BYTES = 64 << 20
"""Maximum length of a line: a specification and the variables of a shell."""
CONNECT_SECONDS = 2.0
"""How long an idle driver may take to answer."""


class DriverCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A session to run: an experiment by name, or a flow run of Prefect.

    Attributes:
        name: the experiment.
        spec: its specification; None: resume the experiment `name`.
        trials: new total number of trials; None: as specified.
        retry_failed: whether its failed trials are retried.
        flow_run: id of the flow run; None for a command.
        folder: working directory of the calling shell; empty for a flow run.
        variables: environment of the calling shell; empty for a flow run.

    """

    name: str = ""
    spec: dict[str, Any] | None = None
    trials: int | None = None
    retry_failed: bool = False
    flow_run: str | None = None
    folder: str = ""
    variables: dict[str, str] = {}


class DriverMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message from a driver.

    Attributes:
        kind: taken, said, ended or failed.
        text: the line for the user, or the error's text.
        error: class of a failure.
        trace: the traceback of the user's code.
        spec_error: arguments of a SpecError.
        driver: process id, with `taken`.

    """

    kind: str
    text: str = ""
    error: str = ""
    trace: str = ""
    spec_error: list[Any] | None = None
    driver: int = 0

    @classmethod
    def of(cls, error: BaseException) -> DriverMessage:
        """Make the message of a failure."""
        known = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "bug")
        spec = None
        if isinstance(error, SpecError):
            spec = list(error.__reduce__()[1])
        return cls(
            kind="failed",
            text=str(error),
            error=known,
            trace=getattr(error, "trace", ""),
            spec_error=spec,
        )

    def raise_it(self) -> None:
        """Raise here the error that the driver raised."""
        if self.spec_error is not None:
            raise SpecError(*self.spec_error)
        if self.error == "code":
            raise UserCodeError(self.text, self.trace)
        raise _ERRORS.get(self.error, RegrowError)(self.text)


_ERRORS: dict[str, type[Exception]] = {
    "spec": SpecError,
    "code": UserCodeError,
    "user": UserError,
    "away": Unavailable,
    "damaged": CorruptLog,
    "failed": RegrowError,
}


class JsonConnection:
    """One side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")

    def send(self, what: DriverCommand | DriverMessage | dict[str, Any]) -> None:
        """Send a line. Raises OSError if the peer has disconnected."""
        self._socket.sendall(msgspec.json.encode(what) + b"\n")

    def prove(self, token: str) -> None:
        """Send the token as the first line. Raises OSError if the peer has disconnected."""
        self._socket.sendall(token.encode() + b"\n")

    def proves(self, token: str) -> bool:
        """Return whether the first line received is the token, compared in constant time."""
        first = next(self.lines(TOKEN_BYTES), b"")
        return hmac.compare_digest(first.rstrip(b"\n"), token.encode())

    def order(self) -> DriverCommand:
        """Return the order that follows the token. Raises msgspec.MsgspecError for
        anything else.
        """
        return msgspec.json.decode(next(self.lines(), b""), type=DriverCommand)

    def words(self) -> Iterator[DriverMessage]:
        """Yield the driver's messages until it ends."""
        yield from (msgspec.json.decode(line, type=DriverMessage) for line in self.lines())

    def lines(self, most: int = MOST_BYTES) -> Iterator[bytes]:
        """Yield the received lines until the peer ends, disconnects, or sends one that is longer
        than `most` bytes.
        """
        try:
            while (line := self._file.readline(most)).endswith(b"\n"):
                yield line
        except OSError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()


def hand_over(folder: Path, order: dict[str, Any]) -> tuple[JsonConnection, int] | None:
    """Give an order to an idle driver; return the connection and the driver's process id, None if
    no driver is idle.
    """
    for pid, known in record.drivers(folder, idle=True):
        try:
            connection = socket.create_connection(
                ("127.0.0.1", known["port"]), timeout=CONNECT_SECONDS
            )
        except OSError:  # another client has already taken it
            continue
        line = JsonConnection(connection)
        try:
            line.prove(known["token"])
            line.send(DriverCommand(**order))
            answer = next(line.words(), None)
        except (OSError, msgspec.MsgspecError):
            answer = None
        if answer is not None and answer.kind == "taken":
            connection.settimeout(None)
            return line, pid
        line.close()
    return None


def encode_signal(number: int) -> dict[str, Any]:
    """Encode a signal for a driver whose user pressed Ctrl-C."""
    return {"signal": number}


def decode_signal(line: bytes) -> signal.Signals | None:
    """Return the signal that a line requests, SIGINT or SIGTERM; None for anything else."""
    try:
        found = signal.Signals(json.loads(line)["signal"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if found in (signal.SIGINT, signal.SIGTERM) else None
