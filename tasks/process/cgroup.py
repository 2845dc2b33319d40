"""Control groups of this process: their CPU and memory limits, and the processes killed in them.

Supports versions 1 and 2, also both at a time. Any group above may set a limit; the files of a
container do not show the groups above its own. Reads the system's files, and needs only Linux:
elsewhere there are no groups.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from regrow.tasks.process.disk import size

ROOT = Path("/")
LATELY_SECONDS = 10.0
"""Seconds for which a kill is reported: of several at a time, each has another caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """Memory limit of a group in bytes, and the group's folder."""

    bytes: int
    group: Path

    def __str__(self) -> str:
        return f"limit of the cgroup {self.group}, {size(self.bytes)}"


def cpus(root: Path = ROOT) -> float:
    """Return the CPU time limit of the groups, in CPUs; infinite if there is none.

    Sets of CPUs are not included: the system applies them to the affinity of each process.
    """
    found = [math.inf]
    for folder in groups("cpu", root):
        quota, period = _numbers(folder / "cpu.max"), None
        if quota is None:  # version 1: -1 for no limit
            quota, period = (
                _numbers(folder / "cpu.cfs_quota_us"),
                _numbers(folder / "cpu.cfs_period_us"),
            )
        both = [*(quota or []), *(period or [])]
        if len(both) == 2 and both[0] > 0 and both[1] > 0:
            found.append(both[0] / both[1])
    return min(found)


def memory(root: Path = ROOT) -> MemoryLimit | None:
    """Return the smallest memory limit of the groups; None for no limit."""
    found = []
    for folder in groups("memory", root):
        own = [
            _numbers(folder / name) or [math.inf]
            for name in ("memory.max", "memory.limit_in_bytes")
        ]
        # version 1: includes groups above, which a container does not see
        above = _stat(folder).get("hierarchical_memory_limit", math.inf)
        found.append((min(above, *(numbers[0] for numbers in own)), folder))
    # Of groups with the same limit, the highest one sets it.
    least, group = min(reversed(found), key=lambda one: one[0], default=(math.inf, ROOT))
    if least >= _UNLIMITED:
        return None
    return MemoryLimit(bytes=int(least), group=group)


_UNLIMITED = 2.0**62
"""Limits from here on mean no limit: version 1 writes the largest number of whole pages."""


def used(group: Path) -> int:
    """Return the bytes of memory of a group, without caches that can be dropped; 0 if unknown."""
    number = _numbers(group / "memory.current") or _numbers(group / "memory.usage_in_bytes")
    stat = _stat(group)
    spare = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return max(0, int(number[0]) - spare) if number else 0


def free_tasks(root: Path = ROOT) -> tuple[float, Path]:
    """Return how many more processes and threads the groups allow, infinite without a limit, and
    the folder of the group that allows the fewest.
    """
    found = [(math.inf, ROOT)]
    for folder in groups("pids", root):
        most, now = (_numbers(folder / name) for name in ("pids.max", "pids.current"))
        if most and now:
            found.append((most[0] - now[0], folder))
    return min(found, key=lambda one: one[0])


def kills(root: Path = ROOT) -> int:
    """Return how many processes of the group were killed for lack of memory since it was created; 0
    if that is not counted.

    Version 2 includes the groups below. If the group is the root, the count is that of the whole
    system.
    """
    for folder in groups("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                if (found := _table(folder / name).get("oom_kill")) is not None:
                    return found
    with suppress(OSError):
        return _table(root / "proc/vmstat").get("oom_kill", 0)
    return 0


class Killed:
    """Detects processes of this group killed for lack of memory from now on. Not thread-safe."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root, self._kills, self._since = root, kills(root), -math.inf

    def lately(self) -> str:
        """Return "out of memory" with the limit, for people; empty if nothing was killed in the
        last seconds.

        Call this when a process died for an unknown reason.
        """
        now = time.monotonic()
        if (count := kills(self._root)) != self._kills:
            self._kills, self._since = count, now
        if now - self._since > LATELY_SECONDS:
            return ""
        limit = memory(self._root)
        return f"out of memory ({limit})" if limit else "out of memory"


def groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders of this process's group for a controller and of all visible groups above,
    its own first.

    If both versions are mounted, yields those of both.
    """
    own = dict[str, str]()
    for line in _lines(root / "proc/self/cgroup"):
        _, names, group = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), group)  # version 2: the empty name
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        top, mount = map(_unescaped, before.split()[3:5])
        kind, *_, options = after.split()
        name = "" if kind == "cgroup2" else controller
        if (
            name not in own
            or kind not in ("cgroup", "cgroup2")
            or (kind == "cgroup" and controller not in options.split(","))
        ):
            continue
        # A container may see only its own group, mounted as if it were the root, by its name
        # outside or as "/".
        path = own[name]
        inside = path.removeprefix(top) if top in ("/", path) or path.startswith(f"{top}/") else ""
        mounted = root / mount.lstrip("/")
        folder = mounted / inside.strip("/")
        if ".." in folder.parts or not folder.is_dir():
            folder = mounted
        yield folder
        while folder != mounted:
            folder = folder.parent
            yield folder


def _numbers(file: Path) -> list[float] | None:
    """Return the numbers of a one-line file, "max" as infinite; None if the file does not exist."""
    try:
        return [math.inf if word == "max" else float(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return None


def _stat(group: Path) -> dict[str, int]:
    try:
        return _table(group / "memory.stat")
    except OSError:
        return {}


def _table(file: Path) -> dict[str, int]:
    """Parse lines of "name number". Raises OSError if the file does not exist."""
    pairs = (line.split() for line in file.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)
