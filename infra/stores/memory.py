"""A store in memory, for tests and simulations. Its content ends with its process."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from regrow.infra.stores.keys import check_key, check_prefix
from regrow.tasks.ports.store import Exists, Missing


class MemoryStore:
    """`Store` in a dict."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "memory"

    def create(self, key: str, data: bytes | Path) -> None:
        check_key(key)
        content = data.read_bytes() if isinstance(data, Path) else bytes(data)
        with self._lock:
            if key in self._objects:
                raise Exists(key)
            self._objects[key] = content

    def read(self, key: str) -> bytes:
        check_key(key)
        with self._lock:
            if key not in self._objects:
                raise Missing(key)
            return self._objects[key]

    def fetch(self, key: str, path: Path) -> None:
        path.write_bytes(self.read(key))

    def list(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        with self._lock:
            return sorted(key for key in self._objects if key.startswith(prefix))

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        for key in [check_key(key) for key in keys]:
            with self._lock:
                self._objects.pop(key, None)
