"""Use of NVIDIA's GPUs by the processes on them, read by the driver's library (NVML)."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

DEVICES = "CUDA_VISIBLE_DEVICES"
"""The variable that names a process's GPUs, by index or UUID."""


class GpuReading(NamedTuple):
    """What GPUs are used for now, by all processes. The memory is that of the fullest one, in
    bytes.
    """

    utilization: float
    """Mean share of NVML's last sampling period (up to a second) in which they worked, 0 to 1."""
    memory: int
    total: int


class Gpus:
    """The GPUs of this process, by CUDA_VISIBLE_DEVICES; without that, all of the machine. Finding
    them loads the driver's library.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        try:
            import pynvml

            self._nvml = pynvml
            self._nvml.nvmlInit()
            self._devices = list(map(self._device, self._names()))
        except Exception:  # noqa: BLE001 - no driver, or one that fails: nothing is measured
            self._devices = []

    def _names(self) -> list[str]:
        visible = os.environ.get(DEVICES)
        if visible is None:
            return list(map(str, range(self._nvml.nvmlDeviceGetCount())))
        return [name.strip() for name in visible.split(",") if name.strip()]

    def _device(self, name: str) -> Any:
        if name.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def read(self) -> GpuReading | None:
        """Return their use; None if there is none, or if it cannot be read."""
        if not self._devices:
            return None
        try:
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(one).gpu for one in self._devices]
            memory = [self._nvml.nvmlDeviceGetMemoryInfo(one) for one in self._devices]
        except self._nvml.NVMLError:
            return None
        fullest = max(memory, key=lambda one: one.used / max(1, one.total))
        share = sum(rates) / len(rates) / 100
        return GpuReading(min(1.0, share), int(fullest.used), int(fullest.total))
