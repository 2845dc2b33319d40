"""The hook of a pod that is to end: has Ray drain its node, and returns when Ray is gone.

    python -m regrow.infra.clusters.kubernetes.leave SECONDS

`ray start --block` does it on SIGTERM: trials hear of it, save a checkpoint and go on elsewhere. But KubeRay starts it by way
of a shell, which as the first process of a container takes no notice of SIGTERM unless it has become Ray itself. So the hook
tells Ray's own process; Kubernetes sends its SIGTERM when the hook has returned.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LEAVING = Path("/tmp/regrow-leaving")  # noqa: S108 - a pod's own, which nobody else writes to
"""Is there as soon as the pod is to end; tells an experiment that was interrupted for it from one that was told to stop."""
_TICK = 0.1
_FIRST = 2
"""Where the program's name stands, at the latest: its interpreter may stand before it."""


def started(processes: Path = Path("/proc")) -> Iterator[int]:
    """The processes that are `ray start --block`."""
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
    """Tells Ray to drain and end. Returns the processes that are still there after so long."""
    LEAVING.touch()
    left = list(started())
    for process in left:
        _kill(process)
    deadline = time.monotonic() + seconds
    while (left := [process for process in left if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(_TICK)
    return left


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(1 if leave(float(sys.argv[1])) else 0)
