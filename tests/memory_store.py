"""A store in memory, for tests. It ends with its process, and has no scheme."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from regrow.infra.stores.keys import check_key, check_prefix
from regrow.tasks.ports.store import Exists, Missing


class MemoryRoot:
    """`Root` in a dict."""

    endpoint = ""
    shared = metered = False

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self._stores: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)

    def store(self, experiment: str) -> MemoryStore:
        return self._stores[experiment]

    def experiments(self, known: Collection[str] = ()) -> list[str]:
        return sorted(name for name, store in self._stores.copy().items() if store.list("log/"))

    def has(self, experiment: str) -> bool:
        return experiment in self.experiments()

    def size(self, experiment: str) -> tuple[int, int]:
        store = self.store(experiment)
        sizes = [len(store.read(key)) for key in store.list("")]
        return len(sizes), sum(sizes)

    def check_writable(self) -> None:
        """See Root. A dict needs no proof."""


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
