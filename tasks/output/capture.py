"""Capture of everything that the code of a trial prints: through sys.stdout, sys.stderr, and the
descriptors below them.

A line that Python code prints is captured immediately. What C extensions and child processes write
to descriptors 1 and 2 goes to an unnamed file, which is read periodically (its lines get the time
of reading): a pipe would block a C extension that prints much while it holds Python's lock. A
process runs one attempt at a time, so outputs do not mix.
"""

from __future__ import annotations

import codecs
import ctypes
import fcntl
import io
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, Any, Literal

from regrow.tasks.output.logs import LogRelay, forward_records, is_taken
from regrow.tasks.output.parts import KEEPER, OutputLine
from regrow.tasks.ports.store import Store
from regrow.tasks.process.forking import renewed

Printed = Callable[[Literal["stdout", "stderr"], str, float], bool]
"""Called with the stream, a line without its end, and its time (seconds since the epoch); returns
whether more lines are wanted.
"""
MOST_LINE = 100_000
"""Characters of a line; longer ones are split into several lines."""
MOST_UNENDED = 1_000_000
"""Characters of a progress bar without a line end; its current state is then passed on as a line,
so that it counts towards the limit.
"""
_FREED_BYTES = 4 << 20
"""Bytes to read before their disk space is released."""
_MOST_BYTES = 64 << 20
"""Size limit of the file if space cannot be released piecewise: it is then truncated."""


class _Lines:
    """Splits text into lines as it arrives. A carriage return restarts the line, so that only the
    final state of a progress bar is kept.
    """

    def __init__(self) -> None:
        self._rest = ""
        self._since = 0
        """Characters since the last line ended."""
        self._cut = False
        """Whether the last line passed on was cut: a line end that arrives next belongs to it."""

    def add(self, text: str) -> list[str]:
        """Add text and return the lines that are now complete."""
        *lines, rest = (self._rest + text).split("\n")
        self._since = len(rest) if lines else self._since + len(text)
        if lines and self._cut:
            # An empty first line is only the end of the line that was cut.
            lines, self._cut = lines[not lines[0].strip("\r") :], False
        if "\r" in rest[:-1]:
            rest = rest[rest.rindex("\r", 0, -1) + 1 :]
        if len(rest) > MOST_LINE or self._since > MOST_UNENDED:
            lines, rest, self._since, self._cut = [*lines, rest], "", 0, True
        self._rest = rest
        shown = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
        return [
            line[start : start + MOST_LINE]
            for line in shown
            for start in range(0, len(line) or 1, MOST_LINE)
        ]

    def rest(self) -> list[str]:
        """Return the unfinished line, if there is one."""
        rest, self._rest, self._since, self._cut = self._rest, "", 0, False
        return [rest.rstrip("\r").rpartition("\r")[2]] if rest.strip() else []


class _Tee(io.TextIOBase):
    """Permanent replacement of sys.stdout or sys.stderr, as libraries keep references to them.
    Captures only during an attempt, otherwise passes through.
    """

    def __init__(self, name: Literal["stdout", "stderr"], below: Any) -> None:
        self._name, self._below = name, below
        self._lines = _Lines()
        self._lock = threading.RLock()
        self.printed: Printed | None = None
        renewed(self)

    def renew(self) -> None:
        """Reset in a forked child, which has no thread that processes lines: write to the
        descriptor, which the parent reads.

        Uses a new stream: the old one may hold the parent's unflushed data, and a lock that is
        never released in the child.
        """
        if self.printed is not None:
            self._lock, self.printed = threading.RLock(), None
            with suppress(OSError):  # the user's code has closed the descriptor
                raw = io.FileIO({"stdout": 1, "stderr": 2}[self._name], "w", closefd=False)
                self._below = io.TextIOWrapper(
                    io.BufferedWriter(raw), self.encoding, self.errors, line_buffering=True
                )

    def write(self, text: str) -> int:
        printed = self.printed
        if printed is None:
            count: int = self._below.write(text)
            return count
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not _is_logged_as_well():
            with self._lock:
                lines = self._lines.add(text)
            for line in lines:  # without the lock: `printed` takes locks itself, and may print
                printed(self._name, line, time.time())
        return len(text)

    def end(self) -> None:
        """Stop capturing at the end of the attempt."""
        with self._lock:
            printed, self.printed, rest = self.printed, None, self._lines.rest()
        if printed is not None:
            for line in rest:
                printed(self._name, line, time.time())

    def flush(self) -> None:
        with suppress(ValueError, OSError):
            self._below.flush()

    def fileno(self) -> int:
        """See IO. Returns the descriptor, which is captured as well."""
        number: int = self._below.fileno()
        return number

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        encoding: str | None = self._below.encoding
        return encoding or "utf-8"  # a StringIO below has none

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        errors: str | None = self._below.errors
        return errors

    @property
    def buffer(self) -> Any:
        """See TextIO. Data written to it goes to the descriptor."""
        return self._below.buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class _Descriptor:
    """Descriptor 1 or 2, redirected to an unnamed file while trials run."""

    def __init__(self, name: Literal["stdout", "stderr"], number: int) -> None:
        self._name, self._number = name, number
        self._file: IO[bytes] | None = None
        self._before = -1
        self._read = self._freed = 0
        self._start()

    def _start(self) -> None:
        self._lines, self._decoder = _Lines(), codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self) -> None:
        self._file, self._read, self._freed = tempfile.TemporaryFile(buffering=0), 0, 0  # noqa: SIM115 - `end` closes it
        handle = self._file.fileno()
        # Code that reopens /dev/stdout, or truncates it, has its own file position: append mode
        # makes all writes go to the end.
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_APPEND)
        self._before = os.dup(self._number)
        os.dup2(handle, self._number)

    def end(self) -> None:
        if self._file is not None:
            os.dup2(self._before, self._number)
            os.close(self._before)
            self._file.close()
            self._file = None

    def read(self, printed: Printed | None) -> None:
        """Read what came since the last call. Unwanted lines are also removed from the disk."""
        if self._file is None:
            return
        handle = self._file.fileno()
        size = os.fstat(handle).st_size
        if size < self._read:
            self._read = self._freed = 0
        wanted = printed is not None
        # Read only up to the current size: the code may print faster than this reads.
        while printed is not None and (
            data := os.pread(handle, min(1 << 20, size - self._read), self._read)
        ):
            self._read += len(data)
            for line in self._lines.add(self._decoder.decode(data)):
                wanted = printed(self._name, line, time.time())
            if not wanted:
                break
            if self._read - self._freed >= _FREED_BYTES and _free_blocks(handle, self._read):
                self._freed = self._read
        if size and (not wanted or self._read - self._freed >= _MOST_BYTES):
            os.ftruncate(handle, 0)  # loses output printed at this instant
            self._read = self._freed = 0

    def finish(self, printed: Printed) -> None:
        """Read the rest, including an unfinished line."""
        self.read(printed)
        for line in [*self._lines.add(self._decoder.decode(b"", final=True)), *self._lines.rest()]:
            printed(self._name, line, time.time())
        self._start()


class Capture:
    """Captures what this process prints. One per process, as there is one sys.stdout."""

    def __init__(self) -> None:
        self._descriptors = (_Descriptor("stdout", 1), _Descriptor("stderr", 2))
        self._tees: tuple[_Tee, _Tee] | None = None
        self._reading = threading.Lock()
        self._printed: Printed | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Within the block, pass printed lines to the attempt; between attempts, discard them."""
        if self._tees is None:
            self._tees = _Tee("stdout", sys.stdout), _Tee("stderr", sys.stderr)
        before = sys.stdout, sys.stderr
        _flush()
        for descriptor in self._descriptors:
            descriptor.begin()
        sys.stdout, sys.stderr = self._tees
        try:
            yield
        finally:
            if sys.stdout is self._tees[0]:  # else the user's code has set it meanwhile
                sys.stdout = before[0]
            if sys.stderr is self._tees[1]:
                sys.stderr = before[1]
            _flush()
            with self._reading:
                for descriptor in self._descriptors:
                    descriptor.end()

    @contextmanager
    def passing_to(self, printed: Printed) -> Iterator[None]:
        """Within the block, which lies in `on`, pass an attempt's lines to `printed`."""
        assert self._tees is not None
        _flush()
        with self._reading:
            for descriptor in self._descriptors:
                descriptor.read(None)
            self._printed = printed
        for tee in self._tees:
            tee.printed = printed
        try:
            yield
        finally:
            for tee in self._tees:
                tee.end()
            _flush()
            with self._reading:
                for descriptor in self._descriptors:
                    descriptor.finish(printed)
                self._printed = None

    def poll(self) -> None:
        """Read what arrived through the descriptors."""
        with self._reading:
            for descriptor in self._descriptors:
                descriptor.read(self._printed)


def _flush() -> None:
    """Flush C's and Python's buffers, whose content counts for the attempt that printed it."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()  # type: ignore[union-attr]  # None in a process without standard streams
    with suppress(AttributeError, OSError):
        _libc().fflush(None)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _free_blocks(handle: int, size: int) -> bool:
    """Release the disk space of a file's first bytes; return False if that is impossible."""
    try:
        punch = _libc().fallocate
    except (AttributeError, OSError):  # not Linux
        return False
    punch.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    freed: int = punch(handle, 0x03, 0, size)  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    return freed == 0


_EMIT = logging.StreamHandler.emit.__code__


def _is_logged_as_well() -> bool:
    """Return whether a handler prints a record that is captured anyway: it would be twice."""
    try:
        caller = sys._getframe(2)  # noqa: SLF001 - logging finds callers the same way
    except ValueError:  # written by C code, without a Python caller
        return False
    record = caller.f_locals.get("record") if caller.f_code is _EMIT else None
    return record is not None and is_taken(record)


CAPTURE = Capture()
"""Capture of this process."""


@contextmanager
def kept_output(
    store: Store, trial: int, attempt: int, relay: LogRelay, *, mark: str = ""
) -> Iterator[None]:
    """Store what is printed and logged within the block as an attempt's output, and pass it to
    `relay`. `mark` precedes each line.

    The block lies in `CAPTURE.on()`. Its end does not wait for the store; `KEEPER.finish` does.
    """
    KEEPER.poll = CAPTURE.poll
    output = KEEPER.open(store, trial, attempt)

    def printed(stream: Literal["stdout", "stderr"], text: str, t: float) -> bool:
        if output.full:
            return False
        line = OutputLine(t=t, stream=stream, text=_clean(mark + text))
        relay.add(stream, line.text, t)
        return output.add(line)

    def logged(record: logging.LogRecord, text: str) -> None:
        line = OutputLine(
            t=record.created,
            stream="log",
            text=_clean(mark + text),
            level=record.levelname,
            logger=record.name,
        )
        relay.add(record.name, line.text, record.created, record.levelno)
        output.add(line)

    try:
        with CAPTURE.passing_to(printed), forward_records(logged):
            yield
    finally:
        KEEPER.close(output)


def _clean(text: str) -> str:
    """Escape what cannot be encoded: lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
