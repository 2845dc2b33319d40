"""The project's files on their way into a Secret: a packed folder, small, the same bytes each time.

Why a Secret: it is in Kubernetes itself, so it is there for each cluster that a RayJob brings up, needs no package in the
image, and gives no pod but the head's anything to read (workers get the files from Ray). Ray's own way, a `working_dir` in a
bucket, wants smart_open and boto3 in the image and credentials on each node.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from regrow.tasks.errors import UserError

MOST_BYTES = 1_000_000
"""What a Secret may hold is 1 MiB, all in all."""
_LEFT_OUT = {".git", ".venv", ".regrow", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"}
_NAMED = 3


def packed(folder: Path) -> bytes:
    """The folder's files as a tar.gz. Raises UserError, naming the largest ones, if that is too large for a Secret."""
    files = sorted(_files(folder))
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for file in files:
            tar.add(file, arcname=file.relative_to(folder).as_posix(), recursive=False, filter=_plain)
    if len(data := buffer.getvalue()) > MOST_BYTES:
        largest = sorted(files, key=lambda file: file.stat().st_size, reverse=True)[:_NAMED]
        named = ", ".join(f"{file.relative_to(folder)} ({file.stat().st_size / 1e6:.1f} MB)" for file in largest)
        raise UserError(
            f"{folder}: the project takes {len(data) / 1e6:.1f} MB, packed, and a Secret of Kubernetes 1 MB at most; put data "
            f"into a bucket, and what seldom changes into the image. Its largest files: {named}"
        )
    return data


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        yield from (path for name in names if (path := Path(here, name)).is_file())


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what differs from machine to machine."""
    info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info
