"""Files that only their owner may read: on the disk whole, or not there at all, whenever the machine goes down."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial"
"""How names end of what is being written; one that stays is of a writer that was killed."""


def replace(path: Path, data: str | bytes) -> None:
    """Writes the file, in place of one that is there."""
    with _written(path, data) as whole:
        whole.replace(path)


def create(path: Path, data: str | bytes) -> None:
    """Writes the file unless there is one; the first of several that do so at a time is it."""
    with _written(path, data) as whole, suppress(FileExistsError):
        os.link(whole, path)


@contextmanager
def _written(path: Path, data: str | bytes) -> Iterator[Path]:
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    finally:
        partial.unlink(missing_ok=True)
