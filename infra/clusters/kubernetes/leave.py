"""The preStop hook of a pod: makes Ray drain its node, and returns when Ray has ended.

    python -m regrow.infra.clusters.kubernetes.leave SECONDS

`ray start --block` does so on SIGTERM: trials are notified, save a checkpoint and continue on other
nodes. But KubeRay starts it by a shell, which as the first process of a container ignores SIGTERM,
unless it has become Ray itself. So the hook signals Ray's own process. Kubernetes sends its SIGTERM
after the hook has returned.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from regrow.infra.machine.supervised import Supervised, until

LEAVING = Path("/tmp/regrow-leaving")  # noqa: S108 - in a pod, where no other user can write
"""Exists once the pod is to end: an experiment is then interrupted, not asked to stop."""
_TICK = 0.1
_FIRST = 2
"""How many first words of a command may be the program's name: it may follow an interpreter."""


def started(processes: Path = Path("/proc")) -> Iterator[int]:
    """Yield the processes that run `ray start --block`."""
    for entry in processes.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        named = any(Path(word).name == "ray" for word in words[:_FIRST])
        if named and "start" in words[: _FIRST + 1] and "--block" in words:
            yield int(entry.name)


def leave(seconds: float) -> list[int]:
    """Make Ray drain and end. Returns the processes that still run after `seconds`."""
    LEAVING.touch()
    left = [Supervised(pid=process) for process in started()]
    for process in left:
        process.signal(signal.SIGTERM)
    until(lambda: not any(process.is_alive() for process in left), seconds=seconds, tick=_TICK)
    return [process.pid for process in left if process.is_alive()]


if __name__ == "__main__":
    sys.exit(1 if leave(float(sys.argv[1])) else 0)
