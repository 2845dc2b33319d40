"""Storage of what a trial prints and logs: small objects `logs/<trial>/<attempt>/<part>.jsonl` in
the experiment's state.

Each object is written once and holds lines of JSON in order of arrival: {"t": seconds since the
epoch, "stream": "stdout", "stderr" or "log", "text": "..."}, with "level" and "logger" if the
stream is "log". Lines are buffered in memory; one thread per process writes them every few seconds.
No trial waits for the store, and none fails because of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from regrow.tasks.ports.store import Store, created
from regrow.tasks.process import background

MOST_BYTES = 10_000_000
"""Bytes of an attempt's output that are stored; a last line tells that the rest was not."""
PART_BYTES = 1_000_000
"""Bytes after which an object is complete; it is not much larger."""
FIRST_SECONDS, MOST_SECONDS = 2.0, 15.0
"""Bounds of the seconds between two objects of an attempt, which are a tenth of its age. The last
output of a killed attempt is lost.
"""
RETRY_SECONDS = 10.0
"""Seconds between two tries while the store is unreachable."""
MOST_WAITING = 32_000_000
"""Bytes buffered in a process while the store is unreachable; beyond that, the output of the
attempt that ended first is dropped.
"""
TICK_SECONDS = 0.5
_LOG = logging.getLogger("regrow.trial")
_LINE_BYTES = 60
"""Size of a line in addition to its text."""

Stream = Literal["stdout", "stderr", "log", "traceback", "regrow"]


class OutputLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that an attempt printed or logged.

    Attributes:
        t: seconds since the epoch.
        stream: "traceback" and "regrow" (a message of ours about the attempt) are created from the
            log when they are shown.
        text: the line.
        level: of a log record; empty for none.
        logger: name of its logger; empty for none.

    """

    t: float
    stream: Stream
    text: str
    level: str = ""
    logger: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(OutputLine)


def prefix(trial: int, attempt: int | None = None) -> str:
    """Return the prefix of the keys of a trial's output, or of an attempt's."""
    return f"logs/{trial}/" if attempt is None else f"logs/{trial}/{attempt}/"


def key(trial: int, attempt: int, part: int) -> str:
    """Return the key of a part, counted from 1. Keys sort in the order of the parts."""
    return f"{prefix(trial, attempt)}{part:06d}.jsonl"


def encode(lines: list[OutputLine]) -> bytes:
    """Encode lines as the bytes of an object."""
    return b"".join(_encoder.encode(line) + b"\n" for line in lines)


def decode(data: bytes) -> list[OutputLine]:
    """Decode what `encode` returns. Raises msgspec.DecodeError (a ValueError) on anything else."""
    return [_decoder.decode(line) for line in data.splitlines()]


class AttemptOutput:
    """The output of one attempt. Thread-safe."""

    def __init__(self, store: Store, trial: int, attempt: int) -> None:
        self._store, self._lease = store, (trial, attempt)
        self._lines: deque[OutputLine] = deque()
        self._lock = threading.RLock()  # a signal handler may print while its thread holds it
        self._taken = 0
        self._part = 1
        self._begun = self._tried = time.monotonic()
        self._failed = False
        self._batch: tuple[list[OutputLine], int] = [], 0
        self.waiting = 0
        """Bytes that are not in the store yet."""
        self.full = False
        """Whether the attempt has reached its limit, so that further lines are dropped."""
        self.closed = False
        """Whether the attempt has ended."""

    def add(self, line: OutputLine) -> bool:
        """Add a line; return False if the limit is reached."""
        with self._lock:
            if self.full:
                return False
            size = len(line.text) + _LINE_BYTES
            self._taken += size
            if self._taken > MOST_BYTES:
                self.full = True
                line = OutputLine(
                    t=line.t,
                    stream="regrow",
                    text=f"more than {MOST_BYTES // 1_000_000} MB: what comes now is not kept",
                )
            self._lines.append(line)
            self.waiting += size
            return not self.full

    def due(self, now: float) -> bool:
        """Return whether something has to be written at `now` (monotonic seconds)."""
        with self._lock:
            if not self._lines:
                return False
            if self._failed:
                return now - self._tried >= RETRY_SECONDS
            pause = min(max(FIRST_SECONDS, (now - self._begun) / 10), MOST_SECONDS)
            return self.closed or self.waiting >= PART_BYTES or now - self._tried >= pause

    def write(self) -> None:
        """Write the buffered lines. On any error they stay buffered for the next try."""
        while self.due(time.monotonic()):
            self._tried = time.monotonic()
            if not self._failed:  # else repeat the same batch: it may have been written already
                self._batch = self._next()
            lines, size = self._batch
            try:
                data = encode(lines)
                # A part with other bytes is another process's, to which the attempt was
                # assigned as well.
                while not created(self._store, key(*self._lease, self._part), data):
                    self._part += 1
                self._part += 1
            except Exception as error:  # noqa: BLE001 - no error of the store may fail a trial
                if not self._failed:
                    _LOG.warning(
                        "trial %d: what it prints waits in memory for its store: %s",
                        self._lease[0],
                        error,
                    )
                self._failed = True
                return
            self._failed = False
            with self._lock:
                for _ in lines:
                    self._lines.popleft()
                self.waiting = max(0, self.waiting - size) if self._lines else 0

    def _next(self) -> tuple[list[OutputLine], int]:
        """Return the lines of the next part, and their size in bytes."""
        lines, size = list[OutputLine](), 0
        with self._lock:
            for line in self._lines:
                if size >= PART_BYTES:
                    break
                lines.append(line)
                size += len(line.text) + _LINE_BYTES
        return lines, size


class Keeper:
    """Writes the output of a process's attempts from a thread, which starts with the first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._outputs: list[AttemptOutput] = []
        self._thread: threading.Thread | None = None
        self._hurried = False
        self.poll: Callable[[], None] | None = None
        """Called periodically to read output that does not arrive by calls."""

    def open(self, store: Store, trial: int, attempt: int) -> AttemptOutput:
        """Create the output of an attempt that begins."""
        output = AttemptOutput(store, trial, attempt)
        with self._changed:
            self._outputs.append(output)
            if self._thread is None:
                self._thread = background.start(self._run, name="output")
        return output

    def close(self, output: AttemptOutput) -> None:
        """Mark an attempt's output as complete; the rest is written soon. Returns immediately."""
        with self._changed:
            output.closed = True
            if output.waiting:
                self._hurried = True
                self._changed.notify_all()
            elif output in self._outputs:
                self._outputs.remove(output)

    def leave(self, seconds: float) -> None:
        """Write what is left within `seconds`, as the process is about to end."""
        if self.poll is not None:
            self.poll()
        for output in list(self._outputs):
            self.close(output)
        self.finish(seconds)

    def finish(self, seconds: float) -> bool:
        """Wait until closed outputs are in the store; return False after `seconds`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(output.closed for output in self._outputs), timeout=seconds
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._hurried, timeout=TICK_SECONDS)
                self._hurried = False
                outputs = list(self._outputs)
            if self.poll is not None:
                self.poll()
            for output in outputs:
                output.write()
            with self._changed:
                self._outputs = [o for o in self._outputs if o.waiting or not o.closed]
                while sum(o.waiting for o in self._outputs) > MOST_WAITING and any(
                    o.closed for o in self._outputs
                ):
                    self._outputs.remove(next(o for o in self._outputs if o.closed))
                self._changed.notify_all()


KEEPER = Keeper()
"""Keeper of this process."""
