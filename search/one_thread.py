"""Linear algebra on one thread.

The matrices of our models are small: BLAS is called thousands of times for microseconds each, and
with several threads they mostly wait for each other (a proposal of a Gaussian process took twenty
times as long with two). Also, sums in a fixed order are equal on every machine, whatever its number
of cores.
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
"""Controllers by whether PyTorch, with its own libraries, was loaded. Making one takes ms."""


def on_one_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that BLAS and OpenMP of NumPy, SciPy and PyTorch use one thread while
    it runs. Afterwards they have as many as before.

    PyTorch is included from the first call after its import. The number of threads belongs to the
    process, so calls from several Python threads at once are not supported: one could restore the
    limit that another had set (in threadpoolctl the first one wins).
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

        for library in ("numpy", "scipy.linalg"):  # the controller sees only loaded libraries
            importlib.import_module(library)
        _found[key] = ThreadpoolController()
    return _found[key]
