"""Files that only their owner may read: on the disk whole, or not there at all, whenever the machine goes down."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace(path: Path, data: str | bytes) -> None:
    """Writes the file, in place of one that is there."""
    with _written(path, data) as whole:
        whole.replace(path)


def create(path: Path, data: str | bytes) -> bool:
    """Writes the file unless there is one; whether this one is it, where several do so at a time."""
    with _written(path, data) as whole:
        try:
            os.link(whole, path)
        except FileExistsError:
            return False
    return True


@contextmanager
def _written(path: Path, data: str | bytes) -> Iterator[Path]:
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    finally:
        partial.unlink(missing_ok=True)
