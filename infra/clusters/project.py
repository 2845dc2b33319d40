"""The project's files for machines that get them at their start: a packed folder, always the same
bytes. For Kubernetes it is small, and in a Secret; for machines of a cloud it is a part of what
they get at their first start.

Why a Secret: it is stored in Kubernetes itself, so each pod that a Job of agents starts, at any
time, finds it; it needs no package in the image and no credentials. Ray's own way, a `working_dir`
in a bucket, needs smart_open and boto3 in the image and credentials on each node.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from regrow.infra.clusters import private
from regrow.infra.machine.confidential import NEVER
from regrow.tasks.errors import UserError

MOST_BYTES = 1_000_000
"""A Secret may have 1 MiB in total."""
_NAMED = 3
Ignored = Callable[[Path], bool]
"""Whether an ignore file leaves a path out."""


def packed(
    folder: Path,
    left_out: Collection[str] = (),
    *,
    most: int = MOST_BYTES,
    of: str = "a Secret of Kubernetes",
) -> bytes:
    """Return the folder's files as a tar.gz, paths relative to it: all but what its ignore files
    name, as Ray reads them, and `left_out` (`confidential`). Links to folders are not followed.
    Raises UserError, naming the largest files, if the result has more than `most` bytes, which `of`
    cannot have.
    """
    files = sorted(_files(folder, {*left_out}, base=folder))
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
            f" {most / 1e6:.0f} MB at most; name what is not needed in a .gitignore there, put data"
            f" into a bucket, and what seldom changes into the image. Its largest files: {named}"
        )
    return data


def _files(
    folder: Path, left_out: Collection[str], *, base: Path, ignored: Sequence[Ignored] = ()
) -> Iterator[Path]:
    """Yield the files below `folder` that are sent. `left_out`: paths relative to `base`, those of
    folders end with `/`. `ignored`: what the ignore files of the folders above leave out.
    """
    ignored = [*ignored, *private.ignored(folder)]
    for path in folder.iterdir():
        is_folder = path.is_dir()
        name = path.relative_to(base).as_posix() + "/" * is_folder
        if name in left_out or any(leaves_out(path) for leaves_out in ignored):
            continue
        if path.is_file():
            yield path
        elif path.name in NEVER or path.is_symlink() or not os.access(path, os.R_OK | os.X_OK):
            continue
        elif is_folder:
            yield from _files(path, left_out, base=base, ignored=ignored)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove what differs between machines."""
    info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info
