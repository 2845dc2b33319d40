"""What a trial prints and logs, kept in the experiment's state: small objects `logs/<trial>/<attempt>/<part>.jsonl`.

Each object is written once and holds lines of JSON in the order in which they came: {"t": seconds since the epoch, "stream":
"stdout", "stderr" or "log", "text": "..."}, with "level" and "logger" where the stream is "log". What is taken in here waits
in memory; one thread a process writes it every few seconds. No trial waits for a store, and none fails because of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from regrow.tasks.ports import Exists, Store

MOST_BYTES = 10_000_000
"""Of an attempt's output that are kept; a line says that the rest was not."""
PART_BYTES = 1_000_000
"""An object is not much larger than this."""
FIRST_SECONDS, MOST_SECONDS = 2.0, 15.0
"""Between two objects of an attempt: a tenth of its age, within these bounds. What a killed attempt printed last is lost."""
RETRY_SECONDS = 10.0
"""Until the next try while the store is away."""
MOST_WAITING = 32_000_000
"""Bytes that wait in a process at most while the store is away; then the output of the attempt that ended first goes."""
TICK_SECONDS = 0.5
_LOG = logging.getLogger("regrow.trial")
_LINE_BYTES = 60
"""What a line costs beyond its text."""

Stream = Literal["stdout", "stderr", "log", "traceback", "regrow"]


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that an attempt printed or logged. `t` is seconds since the epoch. "traceback" and "regrow" (a word of ours about
    the attempt) are made of the log where they are shown.
    """

    t: float
    stream: Stream
    text: str
    level: str = ""
    logger: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def prefix(trial: int, attempt: int | None = None) -> str:
    """What the keys of a trial's output, or of an attempt's, begin with."""
    return f"logs/{trial}/" if attempt is None else f"logs/{trial}/{attempt}/"


def key(trial: int, attempt: int, part: int) -> str:
    """The key of a part, counted from 1; in the order of their keys, the parts of an attempt are in their order."""
    return f"{prefix(trial, attempt)}{part:06d}.jsonl"


def encode(lines: list[Line]) -> bytes:
    """The bytes of an object."""
    return b"".join(_encoder.encode(line) + b"\n" for line in lines)


def decode(data: bytes) -> list[Line]:
    """The inverse of `encode`. Raises msgspec.DecodeError (a ValueError) on anything else."""
    return [_decoder.decode(line) for line in data.splitlines()]


class Output:
    """The output of one attempt. Thread-safe."""

    def __init__(self, store: Store, trial: int, attempt: int) -> None:
        self._store, self._lease = store, (trial, attempt)
        self._lines: deque[Line] = deque()
        self._lock = threading.RLock()  # a signal handler may print while its own thread is in here
        self._taken = 0
        self._part = 1
        self._begun = self._tried = time.monotonic()
        self._failed = False
        self._batch: tuple[list[Line], int] = [], 0
        self.waiting = 0
        """Bytes that are not in the store yet."""
        self.full = False
        """Whether the attempt has printed so much that nothing more is taken."""
        self.closed = False
        """Whether nothing more comes."""

    def add(self, line: Line) -> bool:
        """Takes a line in; False if it is too much."""
        with self._lock:
            if self.full:
                return False
            size = len(line.text) + _LINE_BYTES
            self._taken += size
            if self._taken > MOST_BYTES:
                self.full = True
                line = Line(t=line.t, stream="regrow", text=f"more than {MOST_BYTES // 1_000_000} MB: what comes now is not kept")
            self._lines.append(line)
            self.waiting += size
            return not self.full

    def due(self, now: float) -> bool:
        """Whether there is something to write by now (monotonic seconds)."""
        with self._lock:
            if not self._lines:
                return False
            if self._failed:
                return now - self._tried >= RETRY_SECONDS
            pause = min(max(FIRST_SECONDS, (now - self._begun) / 10), MOST_SECONDS)
            return self.closed or self.waiting >= PART_BYTES or now - self._tried >= pause

    def write(self) -> None:
        """Writes what waits, as one object or several. Whatever the store says, it stays for the next time."""
        while self.due(time.monotonic()):
            self._tried = time.monotonic()
            if not self._failed:  # else the same once more: its answer may be all that was lost
                self._batch = self._next()
            lines, size = self._batch
            try:
                self._create(encode(lines))
            except Exception as error:  # noqa: BLE001 - whatever fails there is no reason for a trial to fail
                if not self._failed:
                    _LOG.warning("trial %d: what it prints waits in memory for its store: %s", self._lease[0], error)
                self._failed = True
                return
            self._failed = False
            with self._lock:
                for _ in lines:
                    self._lines.popleft()
                self.waiting = max(0, self.waiting - size) if self._lines else 0

    def _next(self) -> tuple[list[Line], int]:
        """The lines of the next part, and what they count as."""
        lines, size = list[Line](), 0
        with self._lock:
            for line in self._lines:
                if size >= PART_BYTES:
                    break
                lines.append(line)
                size += len(line.text) + _LINE_BYTES
        return lines, size

    def _create(self, data: bytes) -> None:
        while True:
            try:
                self._store.create(place := key(*self._lease, self._part), data)
            except Exists:
                # Our own try whose answer was lost; or another process, to which the attempt was handed out as well.
                if self._store.read(place) != data:
                    self._part += 1
                    continue
            self._part += 1
            return


class Keeper:
    """Writes the output of a process's attempts from a thread, which is started with the first of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._outputs: list[Output] = []
        self._thread: threading.Thread | None = None
        self._hurried = False
        self.poll: Callable[[], None] | None = None
        """Called now and then, so that what is read rather than received comes in."""

    def open(self, store: Store, trial: int, attempt: int) -> Output:
        """The output of an attempt that begins."""
        output = Output(store, trial, attempt)
        with self._changed:
            self._outputs.append(output)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="regrow-output", daemon=True)
                self._thread.start()
        return output

    def close(self, output: Output) -> None:
        """Nothing more comes of an attempt: the rest is written soon. Returns at once."""
        with self._changed:
            output.closed = True
            if output.waiting:
                self._hurried = True
                self._changed.notify_all()
            elif output in self._outputs:
                self._outputs.remove(output)

    def leave(self, seconds: float) -> None:
        """The process is about to end: writes what there is, within `seconds`."""
        if self.poll is not None:
            self.poll()
        for output in list(self._outputs):
            self.close(output)
        self.finish(seconds)

    def finish(self, seconds: float) -> bool:
        """Waits until all that was closed is in the store; False if that takes longer than `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(output.closed for output in self._outputs), timeout=seconds)

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
                while sum(o.waiting for o in self._outputs) > MOST_WAITING and any(o.closed for o in self._outputs):
                    self._outputs.remove(next(o for o in self._outputs if o.closed))
                self._changed.notify_all()


KEEPER = Keeper()
"""This process's."""
