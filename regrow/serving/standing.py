"""How a server stands: what answers, what was refused last, what is in the way. In a file, for whoever keeps the server up.

A server that somebody typed has no such file: its words are in the terminal.
"""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from regrow.infra.machine import private_files
from regrow.serving.messages import Chosen, Role

_LOG = logging.getLogger("regrow.serving")
_OPTION = re.compile(r"--(?=(?:model|gate|canary|replicas|host|port):)")
"""Who reads the file wrote a key of `serve:`, not an option."""


class Answering(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that answers, `since` seconds since the epoch."""

    experiment: str
    trial: int
    step: int
    metric: str
    value: float
    since: float

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.experiment}, trial {self.trial}, step {self.step}, {self.metric} {self.value:.6g}"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. `pid` of the server that wrote it; `url` empty before it listens, `port` that of the last one that did,
    0 for none; `main` and `canary` None for none.

    `refused`: the last checkpoint that may not be served, and why, at `refused_at`. `trouble`: what is in the way now.
    """

    pid: int = 0
    url: str = ""
    port: int = 0
    main: Answering | None = None
    canary: Answering | None = None
    refused: str = ""
    refused_at: float = 0.0
    trouble: str = ""


class Standing:
    """Keeps the file as things are. What cannot be written is logged, and keeps nobody from being answered."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._state = State() if file is None else read(file)

    @property
    def state(self) -> State:
        """As it is."""
        return self._state

    def begins(self) -> None:
        """A server starts; what the one before it has refused is still worth knowing."""
        self._now(pid=os.getpid(), url="", main=None, canary=None, trouble="")

    def listens(self, url: str, port: int) -> None:
        """It takes requests."""
        self._now(url=url, port=port)

    def serves(self, role: Role, chosen: Chosen | None) -> None:
        """It answers with this one from now on; None: with none in that role."""
        found = None if chosen is None else Answering(
            experiment=chosen.experiment, trial=chosen.trial, step=chosen.step, metric=chosen.metric, value=chosen.value,
            since=chosen.since,
        )
        self._now(**{role: found})

    def refuses(self, line: str) -> None:
        """A checkpoint may not be served, which is told in a line."""
        self._now(refused=line, refused_at=time.time())

    def troubled(self, line: str) -> None:
        """Something is in the way, empty: nothing any more."""
        if (line := _OPTION.sub("serve.", line)) != self._state.trouble:
            self._now(trouble=line)

    def _now(self, **changes: object) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)
        if self._file is not None:
            try:
                private_files.replace(self._file, msgspec.json.encode(self._state))
            except OSError as error:
                _LOG.warning("%s cannot be written: %s", self._file, error)


def read(file: Path) -> State:
    """What a file says; nothing where there is none, or one of another version."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=State)
    return State()
