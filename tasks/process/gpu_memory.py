"""A trial's share of a GPU's memory, and how a library says that the memory is full."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

FULL = "; the GPU's memory was full"
"""What the message of a failed attempt says in addition."""
_JAX = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_FULL = {"OutOfMemoryError": ("torch",), "ResourceExhaustedError": ("tensorflow",)}
"""Names of exceptions that mean it, by the packages that they are from."""
_LINE = re.compile(
    r"(?:^|[.\s])OutOfMemoryError: (?:CUDA|HIP) out of memory|CUDA error: out of memory"
    r"|RESOURCE_EXHAUSTED: Out of memory|ResourceExhaustedError: "
)
"""Lines with which a program's traceback ends."""


def announce(share: float) -> None:
    """Limit JAX, also in programs that this process starts, to `share` of a GPU's memory. A limit
    that the user has set stays.
    """
    os.environ.setdefault(_JAX, f"{share:g}")


def limit(share: float) -> None:
    """Limit PyTorch, if it has been imported, to `share` of its GPU's memory."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


def is_full(error: BaseException) -> bool:
    """Return whether PyTorch, TensorFlow or JAX says that a GPU's memory is full."""
    for kind in type(error).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _FULL.get(kind.__name__, ()):
            return True
        if package in ("jax", "jaxlib") and str(error).startswith("RESOURCE_EXHAUSTED"):
            return True
        if package == "torch" and "CUDA error: out of memory" in str(error):
            return True
    return False


def reports_full_gpu(lines: Iterable[str]) -> bool:
    """Return whether a program's last lines report that a GPU's memory is full."""
    return any(_LINE.search(line) for line in lines)
