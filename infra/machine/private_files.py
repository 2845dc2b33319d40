"""Files and folders for their owner only; a file is complete on disk or absent, at any crash."""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regrow.infra.machine.naming import publish_or_move

PARTIAL = ".partial"
"""Suffix of files that are being written. A remaining one is of a writer that was killed."""


def opener(path: str, flags: int) -> int:
    """Open a file, as an `opener` for `open`: a new file is private to its owner, and symbolic
    links are not followed. Raises OSError (ELOOP) for a link.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def folder(path: Path) -> Path:
    """Create the folder if needed, make it private to its owner if the file system supports that,
    and return it. Raises OSError.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Created with another umask, or by a release that left it open.
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        with suppress(OSError):  # not supported by FAT and some network shares
            path.chmod(0o700)
    return path


def replace(path: Path, data: str | bytes) -> None:
    """Write the file, replacing an existing one."""
    with _written(path, data) as whole:
        whole.replace(path)


def create(path: Path, data: str | bytes) -> None:
    """Write the file unless it exists. Of several writers at a time the first one wins."""
    with _written(path, data) as whole:
        publish_or_move(whole, path)


def read_record(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none that can be read."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


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
