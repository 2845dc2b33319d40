"""What events measure: bounded numbers, and what an attempt used of its machine."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from regrow.search.bounds import LAST_TIME, MOST

Count = Annotated[int, Meta(ge=0, le=MOST)]
Time = Annotated[float, Meta(ge=0, le=LAST_TIME)]
Price = Annotated[float, Meta(ge=0, le=1e15)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]


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
