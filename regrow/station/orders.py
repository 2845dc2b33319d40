"""How a driver is told what to run, and what it says of it: lines of JSON over loopback, with the driver's own token.

A connection carries one order. The driver answers `taken`, then `said` for each line that the user should read, then `ended`
or `failed`. The other side may send `signal` meanwhile; when it goes away, the driver goes on.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.log.log import CorruptLog
from regrow.search.errors import SpecError
from regrow.station import record
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.ports import Unavailable

CONNECT_SECONDS = 2.0
"""How long a driver that waits may take to answer."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A session to be run: of an experiment by its name, or what a flow run of Prefect's is.

    `spec` None goes on with the experiment `name`. `folder` and `variables`: where the command was typed, whose output goes to
    a person there; a flow run, which nobody typed, has neither.
    """

    token: str
    name: str = ""
    spec: dict[str, Any] | None = None
    trials: int | None = None
    retry_failed: bool = False
    flow_run: str | None = None
    folder: str = ""
    variables: dict[str, str] = {}


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a driver says. `kind`: taken, said, ended, failed. Of a failure `error` is the class, `trace` the user's traceback."""

    kind: str
    text: str = ""
    error: str = ""
    trace: str = ""
    spec_error: list[Any] | None = None
    driver: int = 0

    @classmethod
    def of(cls, error: BaseException) -> Word:
        """The word of a failure."""
        known = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "bug")
        spec = None
        if isinstance(error, SpecError):
            spec = list(error.__reduce__()[1])
        return cls(kind="failed", text=str(error), error=known, trace=getattr(error, "trace", ""), spec_error=spec)

    def raise_it(self) -> None:
        """Raises on this side what was raised on the other."""
        if self.spec_error is not None:
            raise SpecError(*self.spec_error)
        if self.error == "code":
            raise UserCodeError(self.text, self.trace)
        raise _ERRORS.get(self.error, RegrowError)(self.text)


_ERRORS: dict[str, type[Exception]] = {
    "spec": SpecError, "code": UserCodeError, "user": UserError, "away": Unavailable, "damaged": CorruptLog,
    "failed": RegrowError,
}


class Line:
    """One side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")

    def send(self, what: Order | Word | dict[str, Any]) -> None:
        """Sends a line. Raises OSError where nobody listens any more."""
        self._socket.sendall(msgspec.json.encode(what) + b"\n")

    def words(self) -> Iterator[Word]:
        """What comes from a driver, until it ends."""
        yield from (msgspec.json.decode(line, type=Word) for line in self.lines())

    def lines(self) -> Iterator[bytes]:
        """What comes, a line each, until the other side ends or goes away."""
        try:
            yield from iter(self._file.readline, b"")
        except OSError:
            return

    def close(self) -> None:
        """Hangs up."""
        self._file.close()
        self._socket.close()


def hand_over(folder: Path, order: dict[str, Any]) -> tuple[Line, int] | None:
    """Gives an order to a driver that waits for one: the connection, and the driver's process; None if none waits."""
    for pid, known in record.drivers(folder, idle=True):
        try:
            connection = socket.create_connection(("127.0.0.1", known["port"]), timeout=CONNECT_SECONDS)
        except OSError:  # somebody else has it by now
            continue
        line = Line(connection)
        try:
            line.send(Order(token=known["token"], **order))
            answer = next(line.words(), None)
        except (OSError, msgspec.MsgspecError):
            answer = None
        if answer is not None and answer.kind == "taken":
            connection.settimeout(None)
            return line, pid
        line.close()
    return None


def encode_signal(number: int) -> dict[str, Any]:
    """What is sent to a driver whose user pressed Ctrl-C."""
    return {"signal": number}


def decode_signal(line: bytes) -> int | None:
    """The signal that a line asks for, None for anything else."""
    try:
        return int(json.loads(line)["signal"])
    except (ValueError, KeyError, TypeError):
        return None
