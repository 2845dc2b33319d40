"""What this machine has, told within milliseconds: no more than Ray will find here, so that what does not fit is known before.

Never less: where something cannot be told for sure, it counts as there.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from regrow.tasks.disk import size

_GPUS = ("nvidia[0-9]*", "kfd", "dxg", "dri/renderD*", "davinci[0-9]*", "accel*")
"""Devices of which one at least is there where Ray finds a GPU."""


def resources(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> dict[str, float] | None:
    """What a cluster on this machine would have at most, by Ray's names; None where that cannot be told."""
    if sys.platform != "linux" or "RAY_OVERRIDE_RESOURCES" in environment:
        return None
    gpu = any(next(devices.glob(pattern), None) is not None for pattern in _GPUS)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    most = math.inf if visible is None or not gpu else float(len([one for one in visible.split(",") if one.strip()]))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"CPU": float(os.cpu_count() or 1), "GPU": most if gpu else 0.0, "memory": float(memory)}


def words(node: Mapping[str, float]) -> str:
    """What a node has, for people: 'cpu 8, gpu 0, memory 16 GB'; Ray's own resources are left out."""
    told = {"cpu": f"{node.get('CPU', 0.0):g}", "gpu": f"{node.get('GPU', 0.0):g}"}
    if "memory" in node:
        told["memory"] = size(int(node["memory"]))
    other = {n: f"{amount:g}" for n, amount in node.items() if n not in ("CPU", "GPU", "memory", "object_store_memory")}
    told |= {n: amount for n, amount in other.items() if not n.startswith(("node:", "accelerator_type:"))}
    return ", ".join(f"{name} {amount}" for name, amount in told.items())
