"""The process group of this worker, by torchrun's variables."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist

from regrow.tasks.errors import UserError
from regrow.tasks.ports.ranks import World

_NAMES = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
_joined: list[tuple[str | None, ...]] = []
"""Values of the variables for which this module made the process group; empty for none."""


def world() -> World:
    """Return this process's rank and size: those of the process group if there is one, else those
    of torchrun's variables.

    World(0, 1, 0, 1) without them. Raises UserError for variables that are incomplete or not
    numbers.
    """
    if dist.is_available() and dist.is_initialized() and not _stale():
        rank, size = dist.get_rank(), dist.get_world_size()
        return World(rank, size, _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", size))
    size = _number("WORLD_SIZE", 1)
    if size == 1:
        return World()
    rank = _number("RANK", None)
    if not 0 <= rank < size:
        raise UserError(f"RANK is {rank}, WORLD_SIZE {size}; ranks count from 0 to {size - 1}")
    return World(rank, size, _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", size))


def device() -> torch.device:
    """Return this worker's device: the GPU with the number of its LOCAL_RANK, or the CPU without
    GPUs.

    A worker that sees fewer GPUs than its node has workers has them to itself, and takes one of
    them by the remainder.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", world().local_rank % torch.cuda.device_count())


def join() -> World:
    """Join the process group of this worker: created on first use if there are several workers,
    once for each attempt.

    NCCL is used for tensors on GPUs (gloo where several workers share one), and gloo for those in
    memory. `leave` ends it, at the latest at
    the end of the process. If several workers share a node and OMP_NUM_THREADS is not set, PyTorch
    computes with one thread, as under torchrun: more would take the other workers' processors. (Ray
    sets OMP_NUM_THREADS to a trial's `cpu`.) An existing group that other code made is used
    unchanged. Raises UserError if the workers cannot connect.
    """
    if _stale():
        leave()
    here = world()
    if here.size == 1 or dist.is_initialized():
        return here
    if not dist.is_available():
        raise UserError(
            "this build of PyTorch has no torch.distributed, which a trial of several workers needs"
        )
    if here.local_size > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    place = device()
    backend = "gloo"
    if place.type == "cuda":
        torch.cuda.set_device(place)
        # NCCL refuses two ranks of one device
        apart = here.local_size <= torch.cuda.device_count()
        nccl = apart and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if nccl else "cpu:gloo,cuda:gloo"
    try:
        dist.init_process_group(backend)
    except (RuntimeError, ValueError) as error:
        host, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        where = f"{host}:{port} (MASTER_ADDR, MASTER_PORT)"
        why = " ".join(str(error).split())
        raise UserError(
            f"rank {here.rank} of {here.size} could not join the others at {where}: {why}"
        ) from error
    _joined[:] = [_identity()]
    atexit.register(leave)
    return here


def leave() -> None:
    """End the process group that this module made; do nothing if there is none, or if other code
    made it.

    Called at the end of the process. A process that continues with another attempt need not call
    it: the next use detects that the variables belong to another group.
    """
    if _joined and dist.is_initialized():
        dist.destroy_process_group()
    _joined.clear()
    atexit.unregister(leave)


def _identity() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in _NAMES)


def _stale() -> bool:
    """Return whether the process group was made here for an earlier attempt."""
    return bool(_joined) and _joined[0] != _identity()


def _number(name: str, default: int | None) -> int:
    written = os.environ.get(name)
    if written is None and default is not None:
        return default
    try:
        return int(written or "")
    except ValueError:
        what = "is not set" if written is None else f"is {written!r}, not a number"
        raise UserError(
            f"{name} {what}; WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT belong together (see"
            " torchrun)"
        ) from None
