"""Standard output for events alone, one JSON object a line, as they are in the log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout

from rich.console import Console


class Terminal(Console):
    """A console whose reader may go away (`| tee`), which is no reason to end an experiment."""

    def on_broken_pipe(self) -> None:
        """Print nothing any more."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


class Events:
    """Writes to a file descriptor. `deaf`: nobody reads any more, which is no reason to end an experiment."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.deaf = False

    def write(self, lines: Sequence[bytes]) -> None:
        """The lines, each with a line end."""
        data = b"".join(line + b"\n" for line in lines)
        try:
            while data and not self.deaf:
                data = data[os.write(self._descriptor, data) :]
        except BrokenPipeError:
            self.deaf = True


@contextmanager
def only_events() -> Iterator[Events]:
    """Within the block what anybody else writes to standard output goes to standard error, from other processes, too."""
    kept = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield Events(kept)
    finally:
        sys.stdout.flush()  # what somebody wrote to the stream itself and is still in its buffer
        os.dup2(kept, 1)
        os.close(kept)
