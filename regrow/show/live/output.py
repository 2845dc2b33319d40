"""Output streams that may fail without ending the experiment: the terminal, and a stream of events,
one JSON object per line, as in the log but with non-printable characters escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import IO, Any, cast

from regrow.infra.machine.streams import to_nowhere
from regrow.show.live.terminal import PlainConsole


class Terminal(PlainConsole):
    """A console that may lose its reader (`| tee`) or its disk without ending the experiment."""

    lost: str = ""
    """Why something was not written; "" if everything was, or if the reader has gone."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        to_nowhere(self.file)

    @property
    def file(self) -> IO[str]:
        """The stream; of its failures only a missing reader is raised."""
        return cast("IO[str]", _Steady(super().file, self))

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream


class _Steady:
    def __init__(self, stream: IO[str], console: Terminal) -> None:
        self._stream, self._console = stream, console

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        with self._kept():
            self._stream.write(text)

    def flush(self) -> None:
        with self._kept():
            self._stream.flush()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self._console.lost = error.strerror or str(error)


def _escaped(line: bytes) -> bytes:
    """Return the same JSON with escapes for characters that could control a terminal."""
    text = line.decode()
    if text.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()


class Events:
    """Writes events to a file descriptor. `deaf`: a write failed, nothing more is written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.deaf = False

    def write(self, lines: Sequence[bytes]) -> None:
        data = b"".join(_escaped(line) + b"\n" for line in lines)
        try:
            while data and not self.deaf:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self.deaf = True


@contextmanager
def only_events() -> Iterator[Events]:
    """Within the block, standard output goes to standard error, also of other processes."""
    kept = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield Events(kept)
    finally:
        with suppress(OSError):
            # writes what the stream still has in its buffer
            sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
