"""Ending processes that would otherwise outlive the one that they belong to.

Also runs as a script, and then imports only the standard library: it must start fast and stay
small.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

GRACE_SECONDS = 1.5
"""Seconds that the processes have to exit before they are killed."""


class ProcessGuard:
    """Kills all processes whose environment has a mark when this process ends, however it ends.

    A small separate process waits for the end of this one, and reads a pipe until then. For
    example, Ray's raylet dies with its driver, but two of its agents stay for 40 s and more, and
    what a task has started stays forever. Works only where /proc exists; elsewhere it does nothing.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._others: list[tuple[int, str]] = []
        self._guard: subprocess.Popen[bytes] | None = None
        if Path("/proc/self/environ").exists():
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, mark, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                # not reached by signals that end this process (Ctrl-C, a closed terminal)
                start_new_session=True,
            )

    def include(self, processes: Iterable[int]) -> None:
        """Also kill these: a process that sets its title overwrites its environment."""
        others = [
            (process, began) for process in processes if (began := _began(process)) is not None
        ]
        self._others += others
        self._send({"others": others})

    def then(self, command: list[str], *, unless_locked: Path, delay: float) -> None:
        """Set a command to run after the killing, with this process's environment, unless the file
        is locked by some process `delay` seconds later.
        """
        self._send(
            {
                "command": command,
                "lock": str(unless_locked),
                "delay": delay,
                "env": dict(os.environ),
                "cwd": os.getcwd(),
            }
        )

    def _send(self, what: dict[str, Any]) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):  # it was killed, and this process does what it can
                self._guard.stdin.write(json.dumps(what).encode() + b"\n")
                self._guard.stdin.flush()

    def kill(self) -> None:
        """Kill the processes with the mark at once."""
        if self._guard is not None:
            _kill(self._mark, self._others)

    def finish(self) -> None:
        """Kill the processes with the mark at once, and end the guard."""
        self.kill()
        if self._guard is not None:
            self._guard.communicate(b"finished")
            self._guard = None


def marked(*marks: str, among: Iterable[int] | None = None) -> list[int]:
    """Return the processes of this user that were started with all `marks` (NAME=value) in their
    environment. `among`: the processes to look at; None: all.
    """
    wanted = set(map(os.fsencode, marks))
    found = []
    for process in all_processes() if among is None else among:
        try:
            place = Path(f"/proc/{process}")
            # Root could read those of other users, too.
            if (
                process != os.getpid()
                and place.stat().st_uid == os.getuid()
                and wanted <= set((place / "environ").read_bytes().split(b"\0"))
            ):
                found.append(process)
        except OSError:  # another user's, or gone
            continue
    return found


def all_processes() -> list[int]:
    """Return the ids of all processes; empty where /proc does not exist."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []


def threads(process: int) -> int:
    """Return how many threads a process of this user has; 0 for another user's, and for none."""
    try:
        place = Path(f"/proc/{process}")
        return int(stat(process)[17]) if place.stat().st_uid == os.getuid() else 0
    except (OSError, IndexError, ValueError):
        return 0


def stat(process: int) -> list[str]:
    """Return the fields of a process's /proc/PID/stat from its state on. Raises OSError."""
    # The name, in parentheses, may contain any characters.
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()


def is_running(pid: int) -> bool:
    """Return whether a process runs. One that has ended and was not reaped yet counts as gone."""
    try:
        os.kill(pid, 0)
        return stat(pid)[0] != "Z"
    except ProcessLookupError:
        return False
    except (OSError, IndexError):  # another user's, or a system without /proc
        return True


def _received(parent: int) -> bytes:
    """Return what the process `parent` has written, once it has finished or ended.

    The pipe alone does not tell: processes that it has forked, such as those of a pool or a data
    loader, hold it open for as long as they run.
    """
    watched = [sys.stdin.fileno()]
    # It has ended already, or Linux, or the one that this Python was built on, is older than 5.3.
    with suppress(OSError, AttributeError):
        watched.append(os.pidfd_open(parent))
    content = b""
    while not content.endswith(b"finished"):
        if watched[0] not in select.select(watched, [], [])[0]:
            break
        part = os.read(watched[0], 65536)
        if not part:
            break
        content += part
    return content


def _watch(mark: str, parent: int) -> None:
    # If all processes get a signal to end (systemd, slurm), the guard has to stay, to make sure
    # that the others do.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # Not ignored: processes that it starts would inherit that.
        signal.signal(number, lambda *_: None)
    lines = _received(parent).splitlines()
    if lines and lines[-1] == b"finished":
        return
    messages = [json.loads(line) for line in lines]
    others = [(process, began) for one in messages for process, began in one.get("others", ())]
    deadline = time.monotonic() + GRACE_SECONDS
    while _left(mark, others) and time.monotonic() < deadline:
        time.sleep(0.1)
    _kill(mark, others)
    for one in messages:
        if "command" in one:
            _carry_out(one)


def _carry_out(will: dict[str, Any]) -> None:
    # Wait first: a dying process closes its files one after another, so the pipe may have closed
    # before its lock was released.
    time.sleep(will["delay"])
    try:
        with Path(will["lock"]).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # another process has the lock, or the experiment's folder was deleted
        return
    null, where = subprocess.DEVNULL, {"env": will["env"], "cwd": will["cwd"]}
    subprocess.run(will["command"], **where, stdin=null, stdout=null, stderr=null, check=False)


def _began(process: int) -> str | None:
    """Return the start time of a process, in clock ticks since boot: with its id it identifies the
    process permanently. None if it has ended.
    """
    try:
        fields = stat(process)
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _left(mark: str, others: Sequence[tuple[int, str]]) -> list[int]:
    return marked(mark) + [process for process, began in others if _began(process) == began]


def _kill(mark: str, others: Sequence[tuple[int, str]]) -> None:
    kill_all(lambda: _left(mark, others))


def kill_all(find: Callable[[], Sequence[int]]) -> None:
    """Kill the processes that `find` returns, until it returns none: one may just have started
    another.
    """
    while left := find():
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


if __name__ == "__main__":
    _watch(sys.argv[1], int(sys.argv[2]))
