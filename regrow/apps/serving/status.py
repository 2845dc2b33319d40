"""The status of a server: what it serves, what was refused last, what problem it has. In a file,
for the station that keeps the server running.

A server that a person started has no such file: it reports to the terminal.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from regrow.apps.serving.messages import Chosen, Role
from regrow.infra.machine import private_files
from regrow.search.numbers import readable

_LOG = logging.getLogger("regrow.apps.serving")
_OPTION = re.compile(r"--(?=(?:model|gate|canary|replicas|host|port):)")
"""Options are renamed to keys of `serve:`, since the readers of the file wrote those."""


class ServedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A served checkpoint. `since`: seconds since the epoch."""

    experiment: str
    trial: int
    step: int
    metric: str
    value: float
    since: float

    @property
    def text(self) -> str:
        return (
            f"{self.experiment}, trial {self.trial}, step {self.step}, {self.metric}"
            f" {readable(self.value)}"
        )


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file.

    Attributes:
        pid: the server that wrote it.
        url: empty before it listens.
        port: port of the last server that listened, 0 for none.
        main: None for none.
        canary: None for none.
        refused: the last checkpoint that was refused, and why.
        refused_at: when, seconds since the epoch.
        trouble: the current problem, "" for none.

    """

    pid: int = 0
    url: str = ""
    port: int = 0
    main: ServedCheckpoint | None = None
    canary: ServedCheckpoint | None = None
    refused: str = ""
    refused_at: float = 0.0
    trouble: str = ""


class ServingStatus:
    """Keeps the file up to date. A failed write is logged, and does not affect requests."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.state = ServerStatus() if file is None else read(file)
        """The current content."""

    def begins(self) -> None:
        """Record that a server starts; the last refusal of the previous one is kept."""
        self._now(pid=os.getpid(), url="", main=None, canary=None, trouble="")

    def listens(self, url: str, port: int) -> None:
        """Record that it accepts requests."""
        self._now(url=url, port=port)

    def serves(self, role: Role, chosen: Chosen | None) -> None:
        """Record the checkpoint in that role; None: none."""
        self._now(
            **{role: chosen and msgspec.convert(chosen, ServedCheckpoint, from_attributes=True)}
        )

    def refuses(self, line: str) -> None:
        self._now(refused=line, refused_at=time.time())

    def troubled(self, line: str) -> None:
        """Record the current problem; "": none."""
        if (line := _OPTION.sub("serve.", line)) != self.state.trouble:
            self._now(trouble=line)

    def _now(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        if self._file is not None:
            try:
                private_files.replace(self._file, msgspec.json.encode(self.state))
            except OSError as error:
                _LOG.warning("%s cannot be written: %s", self._file, error)


def log_to_terminal() -> logging.Logger:
    """Return the log of serving, in the terminal or the starting process's log: a line each, with
    the time, on standard output, so that it is in one order with what the model prints.
    """
    if not _LOG.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        _LOG.addHandler(handler)
        _LOG.setLevel(logging.INFO)
        _LOG.propagate = False
    return _LOG


def read(file: Path) -> ServerStatus:
    """Read the file; an empty state if there is none, or one of another version."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=ServerStatus)
    return ServerStatus()
