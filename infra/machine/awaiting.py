"""Waiting for processes that start: as long as they make progress, and not in silence."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context

from regrow.infra.machine.descendants import descendants
from regrow.infra.machine.processes import stat

LATE_SECONDS = 3.0
"""Seconds after which the user is shown what is awaited."""
MOST = 20
"""How many times its seconds a `Deadline` lasts at most, whatever progress there is."""
_WORK_SECONDS = 0.5
"""Seconds of CPU that count as progress: more than a process uses that only waits."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at the CPU that processes have used."""

Step = Callable[[str], None]
"""Sets what is awaited from now on."""


@contextmanager
def announced(
    what: str, say: Callable[[str], None], *, after: float = LATE_SECONDS
) -> Iterator[Step]:
    """Provide a Step within the block. If it takes longer than `after` seconds, `say` is called
    with `what` is awaited and the current step, and with each further step.
    """
    now, late, lock = "", False, threading.Lock()

    def announce() -> None:
        say(f"waiting for {what}: {now}" if now else f"waiting for {what}{_load()}")

    def step(found: str) -> None:
        nonlocal now
        with lock:
            now = found
            if late:
                announce()

    def is_late() -> None:
        nonlocal late
        with lock:
            late = True
            announce()

    # In the caller's context: in a flow, Prefect's log of the run is found by it.
    timer = threading.Timer(after, copy_context().run, [is_late])
    timer.daemon = True
    timer.start()
    try:
        yield step
    finally:
        timer.cancel()


def _load() -> str:
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return f" (the machine has a load of {load:.0f} on {cpus} CPUs)" if load > cpus else ""


class Deadline:
    """The end of the patience with processes: `seconds` without progress, which is CPU that they
    and their descendants use. So a busy machine gets the time that it needs, and a process that
    hangs does not. Where /proc does not exist, `seconds` in all.
    """

    def __init__(self, seconds: float, processes: Callable[[], Iterable[int]]) -> None:
        self._seconds, self._processes = seconds, processes
        self._began = self._looked = time.monotonic()
        self._end, self._used = self._began + seconds, 0.0

    def left(self) -> float:
        """Return the seconds that are left; 0 or less: the patience is over."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked, used = now, cpu_seconds(self._processes())
            if used >= self._used + _WORK_SECONDS:
                self._used = used
                self._end = min(now + self._seconds, self._began + MOST * self._seconds)
        return self._end - now


def cpu_seconds(processes: Iterable[int]) -> float:
    """Return the CPU that processes and their descendants have used, in seconds."""
    found = {pid for top in processes for pid in (top, *descendants(top))}
    ticks = 0
    for pid in found:
        with suppress(OSError, IndexError, ValueError):  # it has ended
            ticks += sum(map(int, stat(pid)[11:15]))  # own and reaped children's, user and system
    return ticks / os.sysconf("SC_CLK_TCK")
