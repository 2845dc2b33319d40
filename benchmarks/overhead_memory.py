"""How much memory an experiment and everything started by it take, sampled from /proc while it
runs.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

EVERY_SECONDS = 0.2
RAYS_OWN = (
    "gcs_server",
    "raylet",
    "log_monitor",
    "monitor",
    "dashboard",
    "main.py",
    "reporter_agent",
    "setup_worker",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
)
"""How the names of processes begin that Ray starts for itself."""


class Memory:
    """Watches a process, its descendants, and whatever carries `mark` (NAME=value) in its
    environment.

    Counted is PSS: a page shared by n processes counts one n-th in each, so that the sum is what
    the machine gives away. RSS where the kernel does not tell PSS.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self.peak = 0.0
        """MB, the largest sum seen."""
        self.breakdown: dict[str, float] = {}
        """MB of each process at that moment, by name; several of one name are added up, the name
        saying how many.
        """
        self.own_peak = 0.0
        """MB, the largest sum seen without the processes that are Ray's own."""
        self.own: dict[str, float] = {}
        """MB of each of these at that moment, as in `breakdown`."""
        self.names: dict[int, str] = {}
        """Every process seen, by its number, as it was called last."""
        self.ended = ""
        """Why it was killed, empty if it was not."""

    def watch(
        self,
        process: subprocess.Popen[bytes],
        *,
        most_mb: float = math.inf,
        seconds: float = math.inf,
    ) -> None:
        """Samples until the process has ended; kills it once all together are larger, or it took
        longer.
        """
        deadline = time.monotonic() + seconds
        # leaves it to be waited for
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            self._sample(process.pid)
            if self.peak > most_mb or time.monotonic() > deadline:
                self.ended = (
                    f"killed at {most_mb:,.0f} MB"
                    if self.peak > most_mb
                    else f"killed after {seconds:,.0f} s"
                )
                process.kill()
                return
            time.sleep(EVERY_SECONDS)

    def _sample(self, root: int) -> None:
        found: dict[str, list[float]] = defaultdict(list)
        for pid in self._members(root):
            try:
                name = _name(pid)
                found[name].append(_megabytes(pid))
                # one that is ending has no name any more
                self.names[pid] = name or self.names.get(pid, "")
            except OSError:  # gone meanwhile
                continue
        total = sum(map(sum, found.values()))
        named = {
            name if len(mb) == 1 else f"{name} x{len(mb)}": sum(mb) for name, mb in found.items()
        }
        if total > self.peak:
            self.peak, self.breakdown = total, _largest_first(named)
        own = {
            name: mb for name, mb in _largest_first(named).items() if not name.startswith(RAYS_OWN)
        }
        if sum(own.values()) > self.own_peak:
            self.own_peak, self.own = sum(own.values()), own

    def _members(self, root: int) -> set[int]:
        parents = {pid: _parent(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
        members = {root} | {pid for pid in parents if _has(pid, self._mark)}
        while more := {pid for pid, parent in parents.items() if parent in members} - members:
            members |= more
        return members


def _largest_first(named: dict[str, float]) -> dict[str, float]:
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def _quietly(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    stat = _quietly(Path(f"/proc/{pid}/stat").read_bytes)
    return int(stat.rpartition(b")")[2].split()[1]) if stat else 0


def _has(pid: int, mark: bytes) -> bool:
    return mark in _quietly(Path(f"/proc/{pid}/environ").read_bytes).split(b"\0")


def _megabytes(pid: int) -> float:
    for file, key in (("smaps_rollup", "Pss"), ("status", "VmRSS")):
        text = _quietly(Path(f"/proc/{pid}/{file}").read_bytes).decode()
        if match := re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE):
            return int(match[1]) / 1024
    return 0.0


def _name(pid: int) -> str:
    """What a person calls the process: the module, the script, or Ray's own title."""
    words = (
        Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").strip("\0 ").split("\0")
    )
    # a worker: its actor's class, or a trial between two tasks or in one
    if words[0].startswith("ray::"):
        title = words[0].split()[0].partition(".")[0]
        return (
            "trial process"
            if title in ("ray::IDLE", "ray::ImplicitFunc") or "trial-" in title
            else title
        )
    if "-m" in words:
        return words[words.index("-m") + 1]
    script = next((word for word in words[1:] if word.endswith(".py")), words[0])
    return Path(script).name
