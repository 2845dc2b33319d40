"""NVIDIA's GPUs of this machine, as the driver's library (NVML) knows them, and who uses them.

A MIG slice counts as a GPU of its own, by its UUID. GPUs of other makers are Ray's alone to find.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from regrow.tasks.errors import UserError
from regrow.tasks.process.disk import size
from regrow.tasks.process.gpus import DEVICES

ROCR, HIP = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
_ID = re.compile(r"\d{1,3}|(GPU|MIG)-[0-9a-zA-Z/-]{4,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, or a MIG slice of one.

    Attributes:
        id: as in CUDA_VISIBLE_DEVICES: its index, or the UUID of a slice.
        uuid: its UUID.
        name: the model.
        memory: bytes.
        users: processes that compute on it, in words; empty for none that can be seen.
        foreign: whether one of them belongs to another user of the machine.

    """

    id: str
    uuid: str
    name: str
    memory: int
    users: tuple[str, ...] = ()
    foreign: bool = False


def found() -> list[Gpu]:
    """Return the GPUs of this machine; none without NVIDIA's driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [gpu for index in range(pynvml.nvmlDeviceGetCount()) for gpu in _of(pynvml, index)]
    except pynvml.NVMLError:  # a card that has fallen off its bus
        return []
    finally:
        pynvml.nvmlShutdown()


def memories() -> list[int]:
    """Return the bytes of each GPU of this machine."""
    return [gpu.memory for gpu in found()]


def usable(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs that trials may use: those that CUDA_VISIBLE_DEVICES names or else, as
    long as one remains, those without a process of another user.
    """
    given = environment.get(DEVICES)
    if given is not None:
        named = [one.strip() for one in given.split(",")]
        return [gpu for gpu in gpus if gpu.id in named or gpu.uuid in named]
    return [gpu for gpu in gpus if not gpu.foreign] or list(gpus)


def setting(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES for a local cluster, None to leave it to Ray.

    Ray counts whole devices. So it gets the list where some are left out, or are slices.
    """
    given, mine = environment.get(DEVICES), usable(gpus, environment)
    if given is not None:
        return given if "MIG-" in given else None
    sliced = any(gpu.id.startswith("MIG-") for gpu in mine)
    return ",".join(gpu.id for gpu in mine) if sliced or len(mine) < len(gpus) else None


def as_ray_reads(environment: MutableMapping[str, str]) -> None:
    """Change an environment so that Ray finds AMD's GPUs: Slurm names those of a job in
    ROCR_VISIBLE_DEVICES, with which Ray (2.60) cannot even be imported where it finds some, unless
    HIP_VISIBLE_DEVICES, by which it names the GPUs of each worker, is set, too.
    """
    if HIP not in environment and ROCR in environment:
        environment[HIP] = environment.pop(ROCR)


def in_use(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return lines for the user about GPUs that other processes use."""
    mine = usable(gpus, environment)
    return [
        f"GPU {gpu.id} ({gpu.name}) is used by {', '.join(gpu.users)}: "
        + ("trials share it" if gpu in mine else f"left out; --gpus {gpu.id} takes it")
        for gpu in gpus
        if gpu.users and (gpu in mine or DEVICES not in environment)
    ]


def chosen(text: str, gpus: Sequence[Gpu]) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for GPUs that the user names, "0,2". Raises
    UserError for what is no GPU here.
    """
    ids = [one.strip() for one in text.split(",")]
    known = {gpu.id for gpu in gpus} | {gpu.uuid for gpu in gpus}
    for one in ids:
        if not _ID.fullmatch(one) or (gpus and one not in known):
            here = ", ".join(f"{gpu.id} ({gpu.name})" for gpu in gpus) or "none that NVML knows"
            raise UserError(f"--gpus {text}: {one!r} is no GPU of this machine; there are: {here}")
    if len({*ids}) < len(ids):
        raise UserError(f"--gpus {text}: names one twice; name each once")
    return ",".join(ids)


def _of(pynvml: Any, index: int) -> Iterator[Gpu]:
    """Yield the GPU number `index`, or its MIG slices if it has been cut into some."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    slices = [*_slices(pynvml, handle)]
    for each in slices or [handle]:
        uuid = _text(pynvml.nvmlDeviceGetUUID(each))
        processes = _processes(pynvml, each)
        yield Gpu(
            id=uuid if slices else str(index),
            uuid=uuid,
            name=_text(pynvml.nvmlDeviceGetName(each)),
            memory=int(pynvml.nvmlDeviceGetMemoryInfo(each).total),
            users=tuple(words for words, _ in processes),
            foreign=any(foreign for _, foreign in processes),
        )


def _slices(pynvml: Any, handle: Any) -> Iterator[Any]:
    with suppress(pynvml.NVMLError):  # a model that cannot be cut
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        if current != pynvml.NVML_DEVICE_MIG_ENABLE:
            return
        for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(pynvml.NVMLError):  # no slice at this place
                yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)


def _processes(pynvml: Any, handle: Any) -> list[tuple[str, bool]]:
    """Return the processes that compute on a GPU, in words, and whether another user's."""
    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return []
    return [_process(one.pid, one.usedGpuMemory) for one in running if one.pid != os.getpid()]


def _process(pid: int, memory: int | None) -> tuple[str, bool]:
    used = f" ({size(memory)})" if memory else ""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:  # of another container
        return f"process {pid}{used}", True
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"user {uid}"
    return f"process {pid} of {name}{used}", uid != os.getuid()


def _text(value: str | bytes) -> str:
    """Return a text of NVML, which older versions give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
