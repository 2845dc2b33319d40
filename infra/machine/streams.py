"""Unusual standard streams: closed, non-blocking, on a full disk, without a reader."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import IO

_STDERR = 2


def make_sure_of_streams() -> None:
    """Open /dev/null for standard streams that are closed: else the next opened file would take
    their place.

    Characters that the encoding lacks are written as escapes. Streams that another program has
    made non-blocking, as Node.js does, are blocking again: else output is lost when a pipe is full.
    """
    with suppress(OSError):
        while (file := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            pass
        os.close(file)
    for number in range(_STDERR + 1):
        with suppress(OSError):
            os.set_blocking(number, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for this process's lifetime
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - open for the lifetime
    sys.stderr = sys.stderr or open(_STDERR, "w", closefd=False)  # noqa: SIM115 - open for the lifetime
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def redirect_to_null(stream: IO[str]) -> None:
    """Discard what is written to a stream from now on, and what is in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def refusal(stream: IO[str]) -> str | None:
    """Return why a stream accepts not even a line end; None if it does, or has no reader."""
    try:
        stream.write("\n")
        stream.flush()
    except OSError as error:
        redirect_to_null(stream)
        return None if isinstance(error, BrokenPipeError) else error.strerror or str(error)
    return None
