"""A node of a Ray cluster that belongs to this process: it ends with it, however that ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from regrow.infra.machine import locks, tied
from regrow.infra.machine.descendants import descendants
from regrow.infra.machine.host_environment import ray_folder
from regrow.infra.machine.processes import ProcessGuard
from regrow.infra.machine.supervised import Supervised, await_ready, last_line, spawn
from regrow.infra.ray.node_script import LEAVE
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import temporary

START_SECONDS = 60.0
"""Seconds without progress after which a node counts as one that does not start."""
DRAIN_SECONDS = 60.0
"""Seconds that a node may take to end in order: Ray itself waits 30 s for its tasks."""
_TICK = 0.1
"""Seconds between two tries to take a turn."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise raylet and GCS wait for each other's metrics exporters: startup takes 3.9 s instead
    # of 2.7 s.
    "RAY_enable_metrics_collection": "0",
    # The processes that Ray prestarts live long enough for our actors to use them, and spares
    # (warm_pool.py) until they are touched again. Ray ends an idle process after 1 s by default: a
    # new spare every 10 s took 0.08 of a CPU on each node.
    "RAY_idle_worker_killing_time_threshold_ms": "20000",
}
"""Settings of Ray for the processes of a node that is ours."""


@contextmanager
def turn(*, unless: Callable[[], bool]) -> Iterator[bool]:
    """Wait for a turn to start a node, and hold it within the block: a user has as many turns at a
    time as this machine has CPUs. Yields False if `unless` returned true, else True. A start takes
    1.5 s of CPU, and Ray gives up after some 30 s.
    """
    place = temporary.own()
    names = [f"starting-{number}.lock" for number in range(os.cpu_count() or 1)]
    with ExitStack() as held:
        with suppress(OSError, locks.NoLocks):  # better all at once than not at all
            while place is not None and not unless():
                free = next(filter(None, (locks.acquire(place / name) for name in names)), None)
                if free is not None:
                    held.enter_context(free)
                    break
                time.sleep(_TICK)
        yield not unless()


class OwnNode:
    """One node. `mark`: NAME=value, which all its processes have in their environment."""

    def __init__(
        self, options: Sequence[str], environment: Mapping[str, str], *, mark: str
    ) -> None:
        self._place = ray_folder(os.environ)
        self._log = self._place.parent / "node.log"
        self._log.unlink(missing_ok=True)
        name, _, value = mark.partition("=")
        command = [*tied.command("regrow.infra.ray.node_script"), "--block"]
        self._guard = ProcessGuard(mark)
        self._process: subprocess.Popen[bytes] = spawn(
            [*command, f"--temp-dir={self._place}", *options],
            self._log,
            environment={**environment, **SETTINGS, name: value},
        )
        self._node = Supervised.of(self._process)

    def wait(self, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until it is part of its cluster. Raises RegrowError with Ray's last line if it does
        not start, or `unless` returned true.
        """
        failed = await_ready(
            lambda _: "Ray runtime started" in self._output(),
            lambda: self._node.is_alive() and not unless(),
            seconds=START_SECONDS,
            what="start",
            pid=self._node.pid,
        )
        if failed:
            last, load = last_line(self._log), os.getloadavg()[0]
            self.end(drain=False)
            raise RegrowError(
                f"Ray's node {failed} on {os.uname().nodename}, which has a load of {load:.0f} on"
                f" {os.cpu_count()} CPUs: {last}"
            )
        # Ray's agents overwrite their environment, and with it the mark.
        self._guard.include(descendants(self._node.pid))

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._node.is_alive()

    def end(self, *, drain: bool) -> None:
        """End it, and all that runs on it; with `drain`, once its tasks have ended."""
        if drain:
            self._node.signal(LEAVE)
            self._node.is_gone_in(DRAIN_SECONDS)
        self._node.signal(signal.SIGKILL)
        self._process.wait()
        self._guard.finish()
        if temporary.is_room(self._place.parent):
            shutil.rmtree(self._place, ignore_errors=True)

    def _output(self) -> str:
        try:
            return self._log.read_text(errors="replace")
        except OSError:
            return ""
