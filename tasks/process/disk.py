"""Why a disk cannot be written: what is full, by how much; and the files of a folder on it."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT}


def is_full(error: BaseException, place: Path) -> bool:
    """Return whether a full disk at `place` caused an error, which may be a library's own."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    try:
        # where a library hides the error, as torch.save does
        return shutil.disk_usage(place).free < 1 << 20
    except OSError:
        return False


def explain(error: OSError, place: Path) -> str:
    """Describe why nothing can be written: 'no space left on /data: 12 MB free of 50 GB'."""
    where = _mount(place)
    if error.errno == errno.EROFS:
        return f"{where} is read-only"
    if error.errno == errno.EDQUOT:
        return f"the disk quota on {where} is used up"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to write to {error.filename or place}"
    if error.errno != errno.ENOSPC:
        return error.strerror or str(error)
    return full(place)


def full(place: Path) -> str:
    """Describe how full the disk of `place` is."""
    where = _mount(place)
    try:
        found = os.statvfs(where)
    except OSError:
        return f"no space left on {where}"
    if found.f_files and not found.f_favail:
        return f"no space left on {where}: it can hold no more than {found.f_files:,} files"
    return (
        f"no space left on {where}: {size(found.f_bavail * found.f_frsize)} free of"
        f" {size(found.f_blocks * found.f_frsize)}"
    )


def file_states(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return size, time of the last change and inode of each file below a folder, by its path. What
    cannot be looked at is left out.
    """
    found: dict[str, tuple[int, int, int]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with suppress(OSError):
                seen = os.stat(path)
                found[path] = seen.st_size, seen.st_mtime_ns, seen.st_ino
    return found


def leads_above(path: Path | os.DirEntry[str]) -> bool:
    """Return whether a path is a link to a folder that it lies in, itself or by another link."""
    if not path.is_symlink():
        return False
    target = os.path.realpath(path)
    return any(os.path.realpath(folder) == target for folder in Path(path).absolute().parents)


def size(count: int) -> str:
    """Format bytes for people: 12 MB."""
    amount, unit = float(count), "bytes"
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if amount >= 9.95 or unit == "bytes" else f"{amount:.1f} {unit}"


def _mount(place: Path) -> Path:
    """Return the root of the file system of `place`, which may be missing or unreadable."""
    at = place.absolute()
    while not os.path.ismount(at) and at != at.parent:
        at = at.parent
    return at
