"""Processes that are started with a log, awaited, ended, and restarted with a growing delay; also
servers, which are awaited by a request.

What ends processes whose owner was killed is in `processes.py` and `descendants.py`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

from regrow.infra.machine import locks, private_files
from regrow.infra.machine.awaiting import Deadline
from regrow.infra.machine.processes import is_running
from regrow.tasks.errors import RegrowError

BOOT_SECONDS = 60.0
"""Seconds without progress after which a server counts as one that does not start."""
END_SECONDS = 5.0
"""Seconds in which a server ends that is asked to."""
KILLED_SECONDS = 10.0
"""Seconds for a killed process to be gone."""
_END_BYTES = 1 << 16
"""Bytes of a log in which its last lines are looked for."""
TICK = 0.05
"""Seconds between two looks at a process."""


@contextmanager
def single_supervisor(lock: Path, name: str, **record: str) -> Iterator[list[int]]:
    """Make this process the only supervisor of `name` on this machine within the block: its id and
    `record` are in the lock file. Yields a list to which the signals that ask for its end are
    added. Raises RegrowError if another process is.
    """
    signals: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    held = locks.acquire(lock, wait=1.0)  # checks hold it for an instant
    if held is None:
        raise RegrowError(f"{name} runs on {os.uname().nodename} already")
    with held:
        held.truncate(0)
        held.write(json.dumps({"process": os.getpid(), **record}))
        held.flush()
        yield signals


def sole_record(lock: Path) -> dict[str, Any]:
    """Return the record of the process that is the `single_supervisor` now, with its id at
    `process`; empty for none, and while it starts.
    """
    return private_files.read_record(lock) if locks.is_held(lock) else {}


def spawn(
    command: Sequence[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str],
    folder: Path | str | None = "/",
    inherited: Collection[int] = (),
    umask: int = -1,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which no signal of a terminal reaches. It appends
    its output to `log`, a private file, and inherits the descriptors `inherited`. `folder`: its
    working directory, None: this process's.
    """
    with open(log, "ab", opener=private_files.opener) as into:
        return subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            pass_fds=inherited,
            umask=umask,
            stdin=stdin,
            stdout=into,
            stderr=into,
            start_new_session=True,
        )


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """A process that `spawn` has started, here or in another process.

    Attributes:
        pid: its id, also that of its process group.
        child: the process, if this one has started it; None for another one's.
        lock: a file that it keeps locked, as its pid may be reused; None for none.

    """

    pid: int
    child: subprocess.Popen[bytes] | None = None
    lock: Path | None = None

    @classmethod
    def of(cls, child: subprocess.Popen[bytes], lock: Path | None = None) -> Self:
        """Return a process that this one has started."""
        return cls(pid=child.pid, child=child, lock=lock)

    def is_alive(self) -> bool:
        """Return whether it runs. A child that has ended is reaped."""
        if self.child is not None:
            return self.child.poll() is None
        return is_running(self.pid) and (self.lock is None or locks.is_held(self.lock))

    def is_gone_in(self, seconds: float, *, tick: float = TICK) -> bool:
        """Wait for its end, looking every `tick` s; False if it takes longer than `seconds`."""
        return until(lambda: not self.is_alive(), seconds=seconds, tick=tick)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs; SIGKILL to its whole process group."""
        if self.is_alive():
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if number == signal.SIGKILL else os.kill)(self.pid, number)

    def end(self, *, grace: float) -> bool:
        """End it by SIGTERM, its group by SIGKILL after `grace` s; return whether it is gone."""
        self.signal(signal.SIGTERM)
        if self.is_gone_in(grace):
            return True
        self.signal(signal.SIGKILL)
        return self.is_gone_in(KILLED_SECONDS)


class Backoff:
    """Delays before the restarts of a process: `first` seconds, twice as many after each quick end,
    `most` at most. After `steady` seconds without an end, `first` again.
    """

    def __init__(self, first: float, most: float, *, steady: float) -> None:
        self._first, self._most, self._steady = first, most, steady
        self.reset()

    def reset(self) -> None:
        """Forget the earlier ends."""
        self._next = self._first

    def after(self, ran: float) -> float:
        """Return the delay, in seconds, before the restart of one that ran for `ran` seconds."""
        if ran > self._steady:
            self.reset()
        delay, self._next = self._next, min(2 * self._next, self._most)
        return delay


def until(holds: Callable[[], object], *, seconds: float, tick: float = TICK) -> bool:
    """Wait until something holds, looking every `tick` s; False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(tick)
    return True


def await_ready(
    ready: Callable[[float], bool],
    alive: Callable[[], bool],
    *,
    seconds: float,
    what: str = "answer",
    tick: float = TICK,
    pid: int | None = None,
) -> str:
    """Wait until a process is `ready`, which is called every `tick` seconds with the seconds that
    are left. Return what happened instead, for an error: it ended, or did not `what` in time; "" if
    it is ready.

    `seconds`: without progress of the process `pid`, see `Deadline`; with `pid` None, in all.
    """
    deadline = Deadline(seconds, lambda: [] if pid is None else [pid])
    while not ready(left := deadline.left()):
        if not alive():
            return "ended while it started"
        if left < 0:
            return f"did not {what} in {seconds:.0f} s"
        time.sleep(tick)
    return ""


@contextmanager
def server(
    name: str,
    command: Sequence[str | Path],
    health: str,
    *,
    environment: Mapping[str, str],
    folder: Path | str | None = "/",
    sockets: Collection[socket.socket] = (),
) -> Iterator[None]:
    """Run a server within the block, which begins once it answers. Raises RegrowError with its last
    line if it does not start.

    Args:
        name: what it is, for people.
        command: see `spawn`, also for `environment` and `folder`.
        health: address that it answers once it serves.
        environment: its variables.
        folder: its working directory.
        sockets: those on which it listens; it inherits them, and here they are closed.

    """
    with tempfile.NamedTemporaryFile() as output:
        log = Path(output.name)
        numbers = [one.fileno() for one in sockets]
        try:
            child = spawn(command, log, environment=environment, folder=folder, inherited=numbers)
        finally:
            for one in sockets:
                one.close()
        process = Supervised.of(child)
        try:
            ready = partial(responds, health)
            if why := await_ready(ready, process.is_alive, seconds=BOOT_SECONDS, pid=child.pid):
                raise RegrowError(f"{name} {why}: {last_line(log)}")
            yield
        finally:
            process.end(grace=END_SECONDS)


def responds(url: str, seconds: float = 1.0) -> bool:
    """Return whether a server answers a request for `url` with success, within `seconds`."""
    try:
        with urllib.request.urlopen(url, timeout=max(seconds, 0.1)):
            return True
    except (OSError, http.client.HTTPException):
        return False


def last_line(log: Path) -> str:
    """Return the last line that a process has written, for an error."""
    with suppress(OSError):
        if lines := last_lines(log):
            return lines[-1]
    return "it said nothing"


def last_lines(log: Path) -> list[str]:
    """Return the lines at the end of a log, which may be of any size. Raises OSError."""
    return end_of(log, _END_BYTES).decode(errors="replace").strip().splitlines()


def end_of(log: Path, most: int) -> bytes:
    """Return the last bytes of a log, `most` at most. Raises OSError."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)
