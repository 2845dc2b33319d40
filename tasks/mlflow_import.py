"""Noticing that a process imports mlflow, which takes 4 s, without importing it: who never does pays nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_NAME = "mlflow"


@contextmanager
def when_imported(call: Callable[[], None]) -> Iterator[None]:
    """Calls once within the block: at once if mlflow is there already, else right after it was imported."""
    if _NAME in sys.modules:
        call()
        yield
        return
    finder = _Finder(call)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._looking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME or getattr(self._looking, "on", False):
            return None
        self._looking.on = True  # whoever is asked next finds the real one
        try:
            spec = find_spec(fullname)
        finally:
            self._looking.on = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        """It was executed, not only looked for."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._call()


class _Loader(Loader):
    def __init__(self, real: Loader, call: Callable[[], None]) -> None:
        self._real, self._call = real, call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module is to look as if nobody had been here: resources are found through its loader.
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        self._call()
