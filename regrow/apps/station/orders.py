"""Protocol between a client and an idle driver: lines of JSON over loopback, after the driver's
token.

A connection carries one order. The driver answers `taken`, then `said` for each line that the user
should read, then `ended` or `failed`. The client may send `signal` in between; if the client
disconnects, the driver continues.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.log.log import CorruptLog
from regrow.infra.state import station_record as record
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.process.json_lines import JsonLines

SIGNAL_BYTES = 1024
CONNECT_SECONDS = 2.0
"""How long an idle driver may take to answer."""


class DriverCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A session to run: an experiment by name, or a flow run of Prefect.

    Attributes:
        name: the experiment.
        spec: its specification; None: resume the experiment `name`.
        trials: new total number of trials; None: as specified.
        retry_failed: whether its failed trials are retried.
        code: SHA-256 of a pickled trainable in its state; None for none, or as in its last session.
        flow_run: id of the flow run; None for a command.
        folder: working directory of the calling shell; empty for a flow run. Bytes, as the system
            has it: it may not be UTF-8.
        variables: environment of the calling shell, likewise; empty for a flow run.

    """

    name: str = ""
    spec: dict[str, Any] | None = None
    trials: int | None = None
    retry_failed: bool = False
    code: str | None = None
    flow_run: str | None = None
    folder: bytes = b""
    variables: list[tuple[bytes, bytes]] = []


class DriverSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal for a driver whose user pressed Ctrl-C; only SIGINT and SIGTERM are obeyed."""

    signal: int = 0


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
        return cls(
            kind="failed",
            text=str(error),
            error=known,
            trace=getattr(error, "trace", ""),
            spec_error=list(error.__reduce__()[1]) if isinstance(error, SpecError) else None,
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
COMMANDS = msgspec.json.Decoder(DriverCommand)
SIGNALS = msgspec.json.Decoder(DriverSignal)
MESSAGES = msgspec.json.Decoder(DriverMessage)


def hand_over(folder: Path, order: dict[str, Any]) -> tuple[JsonLines, int] | None:
    """Give an idle driver an order; return connection and process id, None if none is idle."""
    for pid, known in record.drivers(folder, idle=True):
        try:
            connection = socket.create_connection(
                ("127.0.0.1", known["port"]), timeout=CONNECT_SECONDS
            )
        except OSError:  # another client has already taken it
            continue
        line = JsonLines(connection)
        line.prove(known["token"])
        line.send(DriverCommand(**order))
        answer = next(line.messages(MESSAGES), None)
        if answer is not None and answer.kind == "taken":
            connection.settimeout(None)
            return line, pid
        line.close()
    return None
