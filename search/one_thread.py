"""Linear algebra by one thread.

The matrices of our models are small: BLAS is called thousands of times for microseconds each, and where it has several threads
most of the time they wait for each other (a proposal of a Gaussian process took twenty times as long with two). And sums in one
order are equal on every machine, whatever its cores.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
T = TypeVar("T")

_found: dict[bool, ThreadpoolController] = {}
"""By whether PyTorch was loaded, which brings libraries of its own; to make one takes milliseconds."""


def on_one_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Has BLAS and OpenMP, of NumPy, SciPy and PyTorch, use one thread while it runs; then they have as many as before.

    PyTorch counts from the first call on after it was imported. How many there are is the process's, so it is not for several
    Python threads at once: one would put back what it found of another (threadpoolctl has the one that was first decide).
    """

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        with _controller().limit(limits=1):
            return function(*args, **kwargs)

    return limited


def _controller() -> ThreadpoolController:
    key = "torch" in sys.modules
    if key not in _found:
        from threadpoolctl import ThreadpoolController

        for library in ("numpy", "scipy.linalg"):  # it knows only what is loaded when it is made
            importlib.import_module(library)
        _found[key] = ThreadpoolController()
    return _found[key]
