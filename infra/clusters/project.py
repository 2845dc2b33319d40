"""The project's files for machines that get them at their start: a packed folder, always the same
bytes. For Kubernetes it is small, and in a Secret; machines of a cloud or by SSH get it with their
agent.

Why a Secret: it is stored in Kubernetes itself, so each pod that a Job of agents starts, at any
time, finds it; it needs no package in the image and no credentials. Ray's own way, a `working_dir`
in a bucket, needs smart_open and boto3 in the image and credentials on each node.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from regrow.infra.clusters import private
from regrow.infra.machine.confidential import NEVER, confidential, warning
from regrow.tasks.errors import UserError

_NAMED = 3
Ignored = Callable[[Path], bool]
"""Whether an ignore file leaves a path out."""


def packed(
    folder: Path,
    say: Callable[[str], None],
    *,
    most: int,
    of: str,
    left_out: Collection[str] = (),
) -> bytes:
    """Return the folder's files as a tar.gz, paths relative to it, with what links in it lead to:
    all but what its ignore files name, as Ray reads them, confidential files, which `say` names,
    and `left_out`. Raises UserError, naming the largest files, if the result has more than `most`
    bytes; `of`: who gets no more.
    """
    if hidden := confidential(folder):
        say(warning(hidden))
    files = sorted(_files(folder, {*hidden, *left_out}, base=folder))
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", dereference=True) as tar,
    ):
        for file in files:
            if buffer.tell() > most:
                break
            name = file.relative_to(folder).as_posix()
            tar.add(file, arcname=name, recursive=False, filter=_plain)
    if len(data := buffer.getvalue()) > most:
        sizes = ((file.stat().st_size, file) for file in files if file.is_file())
        largest = sorted(sizes, reverse=True)[:_NAMED]
        named = ", ".join(f"{file.relative_to(folder)} ({n / 1e6:,.1f} MB)" for n, file in largest)
        raise UserError(
            f"{folder}: the project has more than the {most / 1e6:.0f} MB, packed, that {of}; name"
            " what is not needed in a .gitignore there, and have data come by a bucket, a shared"
            f" folder or the image. Its largest files: {named}"
        )
    return data


def tarred(files: Mapping[str, bytes], *, mode: int, time: int = 0) -> bytes:
    """Return a tar of these files, by path. `time`: theirs, in seconds since the epoch."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file, data in files.items():
            info = tarfile.TarInfo(file)
            info.size, info.mode, info.mtime = len(data), mode, time
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _files(
    folder: Path, left_out: Collection[str], *, base: Path, ignored: Sequence[Ignored] = ()
) -> Iterator[Path]:
    """Yield the files and folders below `folder` that are sent. `left_out`: paths relative to
    `base`, those of folders end with `/`. `ignored`: what the ignore files of the folders above
    leave out.
    """
    ignored = [*ignored, *private.ignored(folder)]
    for path in folder.iterdir():
        is_folder = path.is_dir()
        name = path.relative_to(base).as_posix() + "/" * is_folder
        if (
            path.name in NEVER
            or name in left_out
            or any(leaves_out(path) for leaves_out in ignored)
        ):
            continue
        if path.is_file():
            yield path
        elif is_folder and os.access(path, os.R_OK | os.X_OK):
            yield path
            yield from _files(path, left_out, base=base, ignored=ignored)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove what differs between machines."""
    info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info
