"""A stand-in for NVIDIA's driver library, compiled for the tests: Ray and regrow load it as they load
the real one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "nvml.c"
GIB = 1 << 30


def line(
    name: str = "NVIDIA A100-SXM4-40GB",
    uuid: str = "GPU-0",
    gib: int = 40,
    part_of: int | None = None,
    users: dict[int, int] | None = None,
) -> str:
    """One device. `part_of`: it is a MIG slice of this one. `users`: GiB in use by process."""
    said = ",".join(f"{pid}:{used * GIB}" for pid, used in (users or {}).items())
    return f"{name}|{uuid}|{gib * GIB}|{'-' if part_of is None else part_of}|{said}\n"


def variables(folder: Path, *devices: str) -> dict[str, str]:
    """Variables under which a process finds these devices; skips where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler makes the stand-in for NVIDIA's driver")
    library, told = folder / "libnvidia-ml.so.1", folder / "gpus"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    told.write_text("".join(devices))
    return {"LD_LIBRARY_PATH": str(folder), "STAND_IN_GPUS": str(told)}
