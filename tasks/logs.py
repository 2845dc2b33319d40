"""What user code logs and prints during a trial, taken from any logger, and handed on to people in bounded batches."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regrow.tasks.forking import renewed
from regrow.tasks.messages import LogLine

RELAY_SECONDS = 1.0
"""Between two batches of lines that are handed on."""
MOST_LINES = 500
"""Lines of a batch; of what comes beyond that within `RELAY_SECONDS` only the number is told."""
MOST_CHARACTERS = 10_000
"""Characters of a line that is handed on."""

# What carries the logs must not log into them.
_CARRIERS = (
    "prefect",
    "httpx",
    "httpcore",
    "websockets",
    "urllib3",
    "asyncio",
    "ray",
    "grpc",
    "anyio",
    "aiohttp",
)


class LogRelay:
    """Hands the lines of one task run on: `send` is given those of a second at a time, from a thread.

    What is left when the run ends is taken by `take` and travels with its result. A forked child hands nothing on.
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
        """Takes a line in. `source` is a logger's name or a stream's, `t` seconds since the epoch."""
        clean = text.replace("\0", "").rstrip()  # PostgreSQL refuses NUL, and with it all other lines
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
                self._thread = threading.Thread(target=self._run, name="log-relay", daemon=True)
                self._thread.start()

    def take(self) -> list[LogLine]:
        """What has not been handed on yet."""
        with self._lock:
            lines, self._lines = self._lines, []
            skipped, self._skipped = self._skipped, 0
        if skipped:
            told = f"... and {skipped:,} more lines, which `regrow logs` shows"
            lines.append(LogLine(source="regrow", level=logging.INFO, text=told, t=lines[-1].t if lines else 0.0))
        return lines

    def close(self) -> None:
        """Nothing is handed on by the thread any more."""
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(RELAY_SECONDS):
            if lines := self.take():
                self._send(lines)


@contextmanager
def forward_records(tell: Callable[[logging.LogRecord, str], None], level: int = logging.INFO) -> Iterator[None]:
    """Within the block, `tell` is given each record that any logger logs at `level` or above, and its text with tracebacks.

    The root logger's level is lowered to `level` meanwhile.
    """
    handler = _TellingHandler(tell, level)
    renewed(handler)
    root = logging.getLogger()
    before = root.level
    lowered = min(before, level) if before else level
    root.setLevel(lowered)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        if root.level == lowered:  # else the user's code has set it meanwhile
            root.setLevel(before)


class _TellingHandler(logging.Handler):
    """Gives records away as they come."""

    def __init__(self, tell: Callable[[logging.LogRecord, str], None], level: int) -> None:
        super().__init__(level)
        self._tell = tell
        self.setFormatter(logging.Formatter("%(message)s"))

    def renew(self) -> None:
        """A forked child has nobody to tell: what the user's own handlers do not take goes to stderr, which its parent reads."""
        self._tell = self._print

    def _print(self, record: logging.LogRecord, text: str) -> None:
        if not any(handler.level <= record.levelno for handler in logging.getLogger().handlers if handler is not self):
            sys.stderr.write(f"{record.levelname} {record.name}: {text}\n")

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_carriers(record.name):
            try:
                self._tell(record, self.format(record))
            except Exception:  # noqa: BLE001 - as every handler has it: a message that does not fit its arguments
                self.handleError(record)


def is_taken(record: logging.LogRecord, level: int = logging.INFO) -> bool:
    """Whether a record comes to the root logger's handlers, and so to ours, unless somebody has removed it."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger.parent is not None:
        if not logger.propagate:
            return False
        logger = logger.parent
    there = any(isinstance(handler, _TellingHandler) for handler in logging.getLogger().handlers)
    return there and record.levelno >= level and not _is_carriers(record.name)


def _is_carriers(name: str) -> bool:
    return name.partition(".")[0] in _CARRIERS
