"""Measures what an attempt uses of its machine, and sums it up for the event of its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from regrow.search.measured import Usage
from regrow.tasks.process.gpus import GpuReading, Gpus
from regrow.tasks.process.usage import Reading, memory, read

SAMPLE_SECONDS = 2.0
"""Seconds between two samples, at most; fewer at the beginning."""
SHORTEST_SECONDS = 0.2
"""An attempt shorter than this is not measured: the system counts CPU time in hundredths of a
second.
"""
MOST_CPU = 0.005
"""Share of a CPU that measuring takes at most: of thousands of processes, samples are rarer."""
IDLE_CPUS = 0.5
"""CPUs below which a process that waits for a disk delays the others."""


class UsageMeter:
    """Measures from its creation on what this process and its descendants use. Thread-safe.

    Its owner calls `sample` a few times a second; most calls do nothing.
    """

    def __init__(self, *, gpus: bool) -> None:
        """Start measuring. `gpus`: whether the process has GPUs."""
        self._lock = threading.Lock()
        self._has_gpus = gpus
        self._gpus: Gpus | None = None
        first = read()
        self.tally = None if first is None else UsageTally(first)
        """None where nothing is measured."""

    def sample(self) -> None:
        """Take a sample if one is due."""
        with self._lock:
            if self.tally is not None and time.monotonic() >= self.tally.due:
                self._measure(self.tally)

    def summary(self) -> Usage | None:
        """Take the last sample and return the summary; None if nothing was measured."""
        with self._lock:
            if self.tally is None or time.monotonic() < self.tally.shortest:
                return None
            self._measure(self.tally)
            return self.tally.summary()

    def _measure(self, tally: UsageTally) -> None:
        began = time.thread_time()
        if (found := read()) is None:
            return
        if self._has_gpus and self._gpus is None:
            self._gpus = Gpus()
        tally.add(found, None if self._gpus is None else self._gpus.read())
        tally.due += (time.thread_time() - began) / MOST_CPU


class UsageTally:
    """What the readings of an attempt add up to. Means are over time."""

    def __init__(self, first: Reading) -> None:
        self._first = self._last = first
        self.shortest = first.t + SHORTEST_SECONDS
        """When there may be a summary."""
        self.due = self.shortest
        """When the next reading is due. Early ones are close together, for short attempts."""
        self._samples, self._processes, self._most_cpus = 0, 1, 0.0
        self.most_memory = first.memory
        self._memory_s = self._wait_s = 0.0
        """Integrals over time: of the bytes, and of whether a disk was waited for."""
        self._gpu_s = self._gpu_seconds = 0.0
        """The integral of the utilization, and the seconds for which it was read."""
        self._most_gpu, self._gpu_memory = 0.0, (0, 0)

    def add(self, found: Reading, gpus: GpuReading | None = None) -> None:
        """Add what has changed since the last reading."""
        last = self._last
        # A process that ends meanwhile may be in none of the files: totals never fall.
        now = found._replace(
            cpu_s=max(found.cpu_s, last.cpu_s),
            read=max(found.read, last.read),
            written=max(found.written, last.written),
        )
        passed = max(now.t - last.t, 1e-3)
        cpus = (now.cpu_s - last.cpu_s) / passed
        if passed >= SHORTEST_SECONDS:
            self._most_cpus = max(self._most_cpus, cpus)
        self.most_memory = max(self.most_memory, now.memory)
        self._processes = max(self._processes, now.processes)
        self._memory_s += now.memory * passed
        self._wait_s += passed if now.waiting and cpus < IDLE_CPUS else 0.0
        self._samples += 1
        self._last, self.due = now, now.t + min(SAMPLE_SECONDS, now.t - self._first.t)
        if gpus is not None:
            self._gpu_s += gpus.utilization * passed
            self._gpu_seconds += passed
            self._most_gpu = max(self._most_gpu, gpus.utilization)
            self._gpu_memory = max(self._gpu_memory, (gpus.memory, gpus.total))

    def summary(self) -> Usage:
        """Return what was measured up to the last sample."""
        first, last = self._first, self._last
        seconds = last.t - first.t
        gpu = self._gpu_seconds > 0
        return Usage(
            seconds=round(seconds, 3),
            samples=self._samples,
            processes=self._processes,
            cpus=round((last.cpu_s - first.cpu_s) / seconds, 3),
            most_cpus=round(self._most_cpus, 3),
            memory=round(self._memory_s / seconds),
            most_memory=self.most_memory,
            memory_limit=memory(),
            read=last.read - first.read,
            written=last.written - first.written,
            disk_wait=round(min(1.0, self._wait_s / seconds), 3),
            gpu=round(self._gpu_s / self._gpu_seconds, 3) if gpu else None,
            most_gpu=round(self._most_gpu, 3) if gpu else None,
            most_gpu_memory=self._gpu_memory[0],
            gpu_memory=self._gpu_memory[1],
        )


def combined(found: Sequence[Usage]) -> Usage:
    """Return the summary of a group from its workers' summaries, of which there is at least one."""
    gpus = [one.gpu for one in found if one.gpu is not None]
    gpu_memory = max((one.most_gpu_memory, one.gpu_memory) for one in found)
    return Usage(
        seconds=max(one.seconds for one in found),
        samples=max(one.samples for one in found),
        workers=len(found),
        processes=sum(one.processes for one in found),
        cpus=round(sum(one.cpus for one in found), 3),
        most_cpus=round(sum(one.most_cpus for one in found), 3),
        memory=sum(one.memory for one in found),
        most_memory=sum(one.most_memory for one in found),
        memory_limit=min(one.memory_limit for one in found),
        read=sum(one.read for one in found),
        written=sum(one.written for one in found),
        disk_wait=round(sum(one.disk_wait for one in found) / len(found), 3),
        gpu=round(sum(gpus) / len(gpus), 3) if gpus else None,
        most_gpu=max((one.most_gpu for one in found if one.most_gpu is not None), default=None),
        most_gpu_memory=gpu_memory[0],
        gpu_memory=gpu_memory[1],
    )
