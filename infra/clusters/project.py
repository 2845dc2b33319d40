"""The project's files for machines that get them at their start: a packed folder, always the same
bytes. For Kubernetes it is small, and in a Secret.

Why a Secret: it is stored in Kubernetes itself, so it exists for each cluster that a RayJob starts,
needs no package in the image, and gives only the head's pod something to read (workers get the
files from Ray). Ray's own way, a `working_dir` in a bucket, needs smart_open and boto3 in the image
and credentials on each node.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

from regrow.infra.machine.confidential import NEVER
from regrow.tasks.errors import UserError

MOST_BYTES = 1_000_000
"""A Secret may have 1 MiB in total."""
_NAMED = 3


def packed(
    folder: Path,
    left_out: Collection[str] = (),
    *,
    most: int = MOST_BYTES,
    of: str = "a Secret of Kubernetes",
) -> bytes:
    """Return the folder's files as a tar.gz, except `left_out`, paths relative to it
    (`confidential`). Raises UserError, naming the largest files, if the result has more than `most`
    bytes, which `of` cannot have.
    """
    files = sorted(_files(folder, {*left_out}))
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for file in files:
            tar.add(
                file, arcname=file.relative_to(folder).as_posix(), recursive=False, filter=_plain
            )
    if len(data := buffer.getvalue()) > most:
        largest = sorted(files, key=lambda file: file.stat().st_size, reverse=True)[:_NAMED]
        named = ", ".join(
            f"{file.relative_to(folder)} ({file.stat().st_size / 1e6:.1f} MB)" for file in largest
        )
        raise UserError(
            f"{folder}: the project takes {len(data) / 1e6:.1f} MB, packed, and {of}"
            f" {most / 1e6:.0f} MB at most; put data into a bucket, and what seldom changes into"
            f" the image. Its largest files: {named}"
        )
    return data


def _files(folder: Path, left_out: set[str]) -> Iterator[Path]:
    def goes(path: Path, end: str = "") -> bool:
        return path.relative_to(folder).as_posix() + end not in left_out

    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in {*folders} - NEVER if goes(Path(here, name), "/"))
        yield from (path for name in names if (path := Path(here, name)).is_file() and goes(path))


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove what differs between machines."""
    info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info
