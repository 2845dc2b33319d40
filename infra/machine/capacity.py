"""What this process may use of its machine, found within milliseconds: on a shared machine, no more
than its share.

The share is the smallest of what the system (affinity, control groups) and the batch system that
started this process allow. The numbers for memory and GPUs are the most that Ray may find: whatever
cannot be determined counts as available.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from regrow.infra.machine import gpus
from regrow.tasks.process import cgroup
from regrow.tasks.process.disk import size
from regrow.tasks.process.gpus import DEVICES

_GPUS = ("nvidia[0-9]*", "kfd", "dxg", "dri/renderD*", "davinci[0-9]*", "accel*")
"""Device files, of which at least one exists where Ray finds a GPU."""
_CPUS = {
    ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"): "",
    ("NCPUS", "PBS_NUM_PPN"): "PBS_JOBID",
    ("LSB_DJOB_NUMPROC",): "",
    ("NSLOTS",): "SGE_TASK_ID",
}
"""Variables in which batch systems give the number of a job's CPUs on this machine: Slurm, PBS,
LSF, Grid Engine.

Not all of these systems keep a process off the other CPUs. Of several names the first that is set
counts. Names that other software may use count only beside a variable that only this batch system
sets. LSF and Grid Engine count the job's CPUs on all hosts: the number may be too high.
"""
_MEGABYTE = 1 << 20
"""Bytes of Slurm's unit of memory."""
_STORE_SHARE, _STORE_LEAST, _SHM_SHARE = 0.3, 100_000_000, 0.95
"""The object store's share of free memory, its least size in bytes, and its largest share of shared
memory. As in Ray (2.60), where Ray sees the limits; it sees only those of a whole container. Ray
refuses a store of less than 75 MiB.
"""

LEAST_MEMORY = 900 * 10**6
"""Bytes with which a run of two trials at a time came to its end; with 524 MB it did not."""


def cpus(environment: Mapping[str, str] = os.environ, root: Path = cgroup.ROOT) -> int:
    """Return how many CPUs this process may use, at least 1; rounded up as in joblib."""
    try:
        here = len(os.sched_getaffinity(0))
    except AttributeError:  # exists on Linux only
        here = os.cpu_count() or 1
    # 1e-6: a quota is a whole number of microseconds per period.
    return max(1, math.ceil(min(here, cgroup.cpus(root), *_batch_cpus(environment)) - 1e-6))


def memory(environment: Mapping[str, str] = os.environ, root: Path = cgroup.ROOT) -> int:
    """Return how many bytes of memory this process and its descendants may use."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup.memory(root)
    return min([installed, *([limit.bytes] if limit else []), *_batch_memory(environment)])


def little_memory(
    environment: Mapping[str, str] = os.environ, root: Path = cgroup.ROOT
) -> str | None:
    """Return a message where this process may use less memory than a run needs; None otherwise."""
    if (most := memory(environment, root)) >= LEAST_MEMORY:
        return None
    return (
        f"regrow may use {size(most)} of memory here, and its servers and Ray alone need some"
        f" {size(LEAST_MEMORY)}: processes may be killed again and again; allow more"
    )


def resources(
    environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")
) -> dict[str, float] | None:
    """Return the most that Ray would find here, under its names; None if that is unknown."""
    if sys.platform != "linux" or "RAY_OVERRIDE_RESOURCES" in environment:
        return None
    gpu = any(next(devices.glob(pattern), None) is not None for pattern in _GPUS) or gpus.found()
    visible = environment.get(DEVICES)
    most = (
        math.inf
        if visible is None or not gpu
        else float(len([one for one in visible.split(",") if one.strip()]))
    )
    return {
        "CPU": float(cpus(environment)),
        "GPU": most if gpu else 0.0,
        "memory": float(memory(environment)),
    }


def of_ray(environment: Mapping[str, str] = os.environ, root: Path = cgroup.ROOT) -> dict[str, int]:
    """Return the resources to pass to a Ray node on this machine: num_cpus and, if memory is
    limited, memory and object_store_memory in bytes.

    Ray itself detects the whole machine and the limits of a whole container, but not those of a job
    within it.
    """
    found = {"num_cpus": cpus(environment, root)}
    most, limit = memory(environment, root), cgroup.memory(root)
    if most >= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        return found
    free = min(most - (cgroup.used(limit.group) if limit and limit.bytes == most else 0), _free())
    store = min(free * _STORE_SHARE, _SHM_SHARE * _shared())
    store = max(_STORE_LEAST, int(store))
    return {**found, "object_store_memory": store, "memory": max(_STORE_LEAST, free - store)}


def store_size() -> int:
    """Return the bytes of the object store of a Ray that is started here, as we or Ray choose it; 0
    if that is unknown.
    """
    if sys.platform != "linux":
        return 0
    return of_ray().get("object_store_memory") or int(min(_STORE_SHARE * _free(), _shared()))


def _free() -> int:
    """Return the machine's free memory in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _shared() -> float:
    """Return the free shared memory in bytes."""
    try:
        shared_memory = os.statvfs("/dev/shm")  # noqa: S108 - where Ray has its object store
    except OSError:
        return math.inf
    return shared_memory.f_bavail * shared_memory.f_frsize


def _batch_cpus(environment: Mapping[str, str]) -> Iterator[int]:
    for names, job in _CPUS.items():
        if not job or job in environment:
            yield from [count for name in names if (count := _number(environment, name))][:1]


def _batch_memory(environment: Mapping[str, str]) -> Iterator[int]:
    """Yield Slurm's limit for this node in bytes; 0 in its variable means no limit."""
    if node := _number(environment, "SLURM_MEM_PER_NODE"):
        yield node * _MEGABYTE
    elif (each := _number(environment, "SLURM_MEM_PER_CPU")) and (
        count := _number(environment, "SLURM_CPUS_ON_NODE")
    ):
        yield each * count * _MEGABYTE


def _number(environment: Mapping[str, str], name: str) -> int:
    """Return a positive whole number from a variable, 0 if it has none."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def resources_text(node: Mapping[str, float]) -> str:
    """Return a node's resources for people: 'cpu 8, gpu 0, memory 16 GB'."""
    amounts = {"cpu": f"{node.get('CPU', 0.0):g}", "gpu": f"{node.get('GPU', 0.0):g}"}
    if "memory" in node:
        amounts["memory"] = size(int(node["memory"]))
    left_out = ("node:", "accelerator_type:", "object_store_memory")
    for name, amount in node.items():
        if name not in ("CPU", "GPU", "memory") and not name.startswith(left_out):
            amounts[name] = f"{amount:g}"
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())
