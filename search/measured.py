"""What events consist of beside plain values: bounded numbers, what was asked of the store, what an
attempt used of its machine, and results that were known before.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from regrow.search.bounds import LAST_TIME, MOST

Count = Annotated[int, Meta(ge=0, le=MOST)]
Time = Annotated[float, Meta(ge=0, le=LAST_TIME)]
Price = Annotated[float, Meta(ge=0, le=1e15)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Traffic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests to the store of the state, every try counted, and the bytes that it sent.

    Attributes:
        writes: requests that write or list.
        reads: requests that read.
        sent: bytes of objects that the store sent.

    """

    writes: Count = 0
    reads: Count = 0
    sent: Count = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            writes=self.writes + other.writes,
            reads=self.reads + other.reads,
            sent=self.sent + other.sent,
        )

    def __bool__(self) -> bool:
        return bool(self.writes or self.reads or self.sent)


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt used of its machine: its process and all that this one started, measured
    every few seconds. Summed over the workers of a group, but for the shares.

    Attributes:
        seconds: how long it was measured.
        samples: how often.
        workers: how many workers of the attempt were measured.
        processes: most processes at a time.
        cpus: mean CPU time a second, in CPUs.
        most_cpus: the most between two samples.
        memory: mean resident memory in bytes. Memory that processes share is counted in each.
        most_memory: the most in a sample.
        memory_limit: bytes that one worker's machine has, or its container allows; 0: unknown.
        read: bytes read from disks; what the system's cache had is not included.
        written: bytes written to disks.
        disk_wait: share of the samples in which a process waited for a disk and less than half a
            CPU was used, 0 to 1.
        gpu: mean utilization of its GPUs, including that by others; 0 to 1. None: not measured.
        most_gpu: the most in a sample.
        most_gpu_memory: most bytes in use on one of its GPUs, including those of others.
        gpu_memory: bytes of that GPU.

    """

    seconds: Time
    samples: Count
    workers: Count = 1
    processes: Count = 1
    cpus: Amount = 0.0
    most_cpus: Amount = 0.0
    memory: Count = 0
    most_memory: Count = 0
    memory_limit: Count = 0
    read: Count = 0
    written: Count = 0
    disk_wait: Share = 0.0
    gpu: Share | None = None
    most_gpu: Share | None = None
    most_gpu_memory: Count = 0
    gpu_memory: Count = 0


class Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A configuration whose result was known before the experiment.

    Attributes:
        config: the flat configuration.
        status: how its trial ended.
        value: the objective, None if there is none.
        values: all metrics, if the experiment has several; else None.
        curve: the objective by step.
        violations: for each of this experiment's constraints, by how much it is broken; None for
            infinitely, as its metric is missing.
        origin: name of the earlier experiment and the trial's number.

    """

    config: dict[str, Any]
    status: Literal["done", "stopped", "failed"] = "done"
    value: float | None = None
    values: list[float] | None = None
    curve: list[tuple[int, float]] = []
    violations: list[float | None] = []
    origin: str = ""
