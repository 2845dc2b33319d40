"""What keeps a disk from being written, in words: what is full, and by how much. Looks at file systems, writes nothing."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT}
_LITTLE = 1 << 20
"""Free bytes below which a disk counts as full where a library does not hand the system's error on, as torch.save."""


def is_full(error: BaseException, place: Path) -> bool:
    """Whether an error is that of a full disk, on which `place` lies; libraries have errors of their own for it."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    try:
        return shutil.disk_usage(place).free < _LITTLE
    except OSError:
        return False


def explain(error: OSError, place: Path) -> str:
    """Why nothing can be written at `place`: 'no space left on /data: 12 MB free of 50 GB'."""
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
    """That the disk on which `place` lies is full."""
    where = _mount(place)
    try:
        found = os.statvfs(where)
    except OSError:
        return f"no space left on {where}"
    if found.f_files and not found.f_favail:
        return f"no space left on {where}: it can hold no more than {found.f_files:,} files"
    return f"no space left on {where}: {size(found.f_bavail * found.f_frsize)} free of {size(found.f_blocks * found.f_frsize)}"


def size(count: int) -> str:
    """Bytes, as people say it: 12 MB."""
    amount, unit = float(count), "bytes"
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if amount >= 9.95 or unit == "bytes" else f"{amount:.1f} {unit}"


def _mount(place: Path) -> Path:
    """The root of the file system that holds `place`, which need not be there, nor be one that may be looked at."""
    at = place.absolute()
    while not os.path.ismount(at) and at != at.parent:
        at = at.parent
    return at
