"""What this process and its descendants use of the machine: CPU, memory, disk.

Reads /proc, of Linux only: elsewhere nothing is measured. Processes of other parents are not seen,
such as Ray's actors that a trial starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from regrow.tasks.process import cgroup

PROC = "/proc"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """What /proc/PID/stat has of a process. The CPU time includes that of its ended children."""

    state: str
    cpu_s: float
    memory: int
    """Resident bytes."""


class Reading(NamedTuple):
    """Totals of some processes at a time."""

    t: float
    """Seconds of the monotonic clock."""
    cpu_s: float
    memory: int
    read: int
    written: int
    processes: int
    waiting: bool
    """Whether one of them waits for a disk."""


def parse_stat(text: str) -> Stat:
    """Parse /proc/PID/stat. Raises ValueError for anything else."""
    # The name, in parentheses, may contain any characters.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 22:
        raise ValueError(f"no line of /proc/PID/stat: {text[:200]!r}")
    ticks = sum(map(int, fields[11:15]))
    return Stat(fields[0], ticks / _TICKS, int(fields[21]) * _PAGE)


def parse_io(text: str) -> tuple[int, int]:
    """Parse /proc/PID/io: bytes read from and written to disks, with those of ended children.
    Raises ValueError for anything else.
    """
    found = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return int(found["read_bytes"]), int(found["write_bytes"])
    except KeyError as error:
        raise ValueError(f"no {error} in /proc/PID/io") from None


def family() -> Iterator[int]:
    """Yield this process, then its descendants."""
    left = [os.getpid()]
    while left:
        process = left.pop()
        yield process
        if process != os.getpid() or has_children():
            threads = f"{PROC}/{process}/task"
            with suppress(OSError):  # the process has ended
                # Each thread has children of its own.
                for thread in os.listdir(threads):
                    with suppress(OSError):  # the thread has ended
                        left += map(int, _text(f"{threads}/{thread}/children").split())


def _text(path: str) -> str:
    # Without a buffer, and not by Path: half the time, and there may be a hundred such files.
    with open(path, "rb", buffering=0) as file:
        return file.read().decode(errors="replace")


def has_children() -> bool:
    """Return whether this process has children: a call, in place of a file for each thread."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13, which has no /proc to find them in
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def read() -> Reading | None:
    """Read the totals of this process and its descendants; None where there is no /proc."""
    stats, read_bytes, written = list[Stat](), 0, 0
    if not os.path.exists(f"{PROC}/self/stat"):
        return None
    for process in family():
        try:
            stats.append(parse_stat(_text(f"{PROC}/{process}/stat")))
            read_one, written_one = parse_io(_text(f"{PROC}/{process}/io"))
        except (OSError, ValueError):  # it has ended, or is another user's
            continue
        read_bytes, written = read_bytes + read_one, written + written_one
    return Reading(
        t=time.monotonic(),
        cpu_s=sum(one.cpu_s for one in stats),
        memory=sum(one.memory for one in stats),
        read=read_bytes,
        written=written,
        processes=sum(one.state not in "ZX" for one in stats),
        waiting=any(one.state == "D" for one in stats),
    )


@cache
def memory() -> int:
    """Return how many bytes of memory this process may have: a few milliseconds, so once."""
    limit = cgroup.memory()
    machine = os.sysconf("SC_PHYS_PAGES") * _PAGE
    return machine if limit is None else min(machine, limit.bytes)
