"""What a command and everything that comes of it used, counted by the kernel: a cgroup (version 2)
for it.

Nothing else counts all of it. `wait4` leaves out those for whom nobody waits, such as Ray's
workers, whose raylet ignores SIGCHLD, and the children of a parent that ended first. Samples of
/proc leave out what lived between two of them, and everybody's last moments. A process is born into
its parent's cgroup and stays there, also as a daemon, and `cpu.stat` keeps what the ended ones
used.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BURN = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0 and os.fork() == 0:
    os.setsid()
    while time.process_time() < 0.3:
        pass
"""
"""A daemon that takes 0.3 s of CPU, and for which nobody waits."""


class Cgroup:
    """One that is there within `made`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def prefix(self) -> list[str]:
        """Words before a command that put it in here; they cost a shell's start, about a
        millisecond.
        """
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._folder / "cgroup.procs")]

    @property
    def cpu(self) -> float:
        """Seconds, user's and system's, of all that is or was in here."""
        match = re.search(
            r"^usage_usec (\d+)$", (self._folder / "cpu.stat").read_text(), re.MULTILINE
        )
        assert match is not None
        return int(match[1]) / 1e6

    @property
    def processes(self) -> list[int]:
        """Those in here that have not ended."""
        return [int(line) for line in (self._folder / "cgroup.procs").read_text().split()]

    def await_empty(self, seconds: float) -> None:
        """Returns once all have ended. Raises TimeoutError with the command lines of those that
        have not.
        """
        deadline = time.monotonic() + seconds
        while "populated 1" in (self._folder / "cgroup.events").read_text():
            if time.monotonic() > deadline:
                left = [
                    Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
                    for pid in self.processes
                ]
                raise TimeoutError(f"after {seconds:.0f} s there still run: {left}")
            time.sleep(0.02)

    def remove(self) -> None:
        """Kills what is still in here, and removes it."""
        (self._folder / "cgroup.kill").write_text("1")
        self.await_empty(10)
        self._folder.rmdir()


@contextmanager
def made() -> Iterator[Cgroup]:
    """A new cgroup below this process's own, which has shown that it counts. Raises SystemExit
    where none can be made.
    """
    folder = _own() / f"regrow-bench-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError as error:
        sys.exit(
            f"no cgroup can be made ({error}): run this as root, or by `systemd-run --user --scope"
            " -p Delegate=yes ...`"
        )
    group = Cgroup(folder)
    try:
        _check(group)
        yield group
    finally:
        group.remove()


def _own() -> Path:
    """Where the cgroup of this process is mounted. Raises SystemExit where there is no version
    2.
    """
    mounts = Path("/proc/self/mounts").read_text() if sys.platform == "linux" else ""
    place = re.search(r"^\S+ (\S+) cgroup2 ", mounts, re.MULTILINE)
    if place is None:
        sys.exit("this needs Linux with cgroups of version 2")
    path = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    assert path is not None
    return Path(place[1], path[1])


def _check(group: Cgroup) -> None:
    subprocess.run([*group.prefix, sys.executable, "-I", "-S", "-c", BURN], check=True)
    group.await_empty(10)
    assert 0.3 <= group.cpu < 0.6, f"a daemon's 0.3 s of CPU were counted as {group.cpu:.3f} s"
