"""Log records and printed lines of a trial, passed on to people in bounded batches."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regrow.tasks.ports.messages import LogLine
from regrow.tasks.process import background
from regrow.tasks.process.forking import renewed

RELAY_SECONDS = 1.0
"""Seconds between two batches of lines."""
MOST_LINES = 500
"""Lines of a batch. Of further lines within `RELAY_SECONDS`, only the number is shown."""
MOST_CHARACTERS = 10_000
"""Characters of a line that is passed on."""
LEVEL = logging.INFO
"""Level from which records are passed on."""

# Libraries that transport the logs: their own records would cause endless loops.
_CARRIERS = (
    "prefect",
    "httpx",
    "httpcore",
    "websockets",
    "urllib3",
    "asyncio",
    "ray",
    "grpc",
    "aiobotocore",
    "anyio",
    "aiohttp",
)


class LogRelay:
    """Passes on the lines of one task run: a thread calls `send` with the lines of a second at a
    time.

    What is left when the run ends is returned by `drain` and travels with the result. A forked
    child passes nothing on.
    """

    def __init__(self, send: Callable[[list[LogLine]], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._lines: list[LogLine] = []
        self._skipped = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def add(self, source: str, text: str, t: float, level: int = logging.INFO) -> None:
        """Add a line. `source` is the name of a logger or a stream, `t` seconds since the epoch."""
        # PostgreSQL rejects NUL, and the whole batch with it
        clean = text.replace("\0", "").rstrip()
        if not clean or os.getpid() != self._pid:
            return
        if len(clean) > MOST_CHARACTERS:
            clean = f"{clean[:MOST_CHARACTERS]}... ({len(clean):,} characters)"
        with self._lock:
            if len(self._lines) >= MOST_LINES:
                self._skipped += 1
                return
            self._lines.append(LogLine(source=source, level=level, text=clean, t=t))
            if self._thread is None:
                self._thread = background.start(self._run, name="log-relay")

    def drain(self) -> list[LogLine]:
        """Remove and return the lines that were not passed on yet."""
        with self._lock:
            lines, self._lines = self._lines, []
            skipped, self._skipped = self._skipped, 0
        if skipped:
            text = f"... and {skipped:,} more lines, which `regrow logs` shows"
            last = lines[-1].t if lines else 0.0
            lines.append(LogLine(source="regrow", level=logging.INFO, text=text, t=last))
        return lines

    def close(self) -> None:
        """Stop the thread."""
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(RELAY_SECONDS):
            if lines := self.drain():
                self._send(lines)


@contextmanager
def forward_records(
    forward: Callable[[logging.LogRecord, str], None],
) -> Iterator[None]:
    """Within the block, call `forward` with each record logged at LEVEL or above, and its text
    including tracebacks. The root logger's level is lowered to LEVEL meanwhile.
    """
    handler = _ForwardingHandler(forward)
    renewed(handler)
    root = logging.getLogger()
    before = root.level
    lowered = min(before, LEVEL) if before else LEVEL
    root.setLevel(lowered)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        if root.level == lowered:  # else the user's code has set it meanwhile
            root.setLevel(before)


class _ForwardingHandler(logging.Handler):
    """Handler that passes records on immediately."""

    def __init__(self, forward: Callable[[logging.LogRecord, str], None]) -> None:
        super().__init__(LEVEL)
        self._forward = forward
        self.setFormatter(logging.Formatter("%(message)s"))

    def renew(self) -> None:
        """Reset in a forked child, which cannot pass records on: what the user's handlers do not
        take goes to stderr, which the parent reads.
        """
        self._forward = self._print

    def _print(self, record: logging.LogRecord, text: str) -> None:
        if not any(
            handler.level <= record.levelno
            for handler in logging.getLogger().handlers
            if handler is not self
        ):
            sys.stderr.write(f"{record.levelname} {record.name}: {text}\n")

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_carriers(record.name):
            try:
                self._forward(record, self.format(record))
            except Exception:  # noqa: BLE001 - required of every handler: arguments may not match the message
                self.handleError(record)


def is_taken(record: logging.LogRecord) -> bool:
    """Return whether a record reaches the root logger's handlers, and so ours."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger.parent is not None:
        if not logger.propagate:
            return False
        logger = logger.parent
    forwards = any(
        isinstance(handler, _ForwardingHandler) for handler in logging.getLogger().handlers
    )
    return forwards and record.levelno >= LEVEL and not _is_carriers(record.name)


def _is_carriers(name: str) -> bool:
    return name.partition(".")[0] in _CARRIERS
