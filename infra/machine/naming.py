"""Giving a finished file a free name in one atomic step: a file with that name is complete.

Standard library only: the embedded Prefect server's process imports it before anything else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

UNSUPPORTED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""Error numbers of file systems that do not support an operation."""
_NO_LINK = {*UNSUPPORTED, errno.EMLINK, errno.EXDEV}
_AT_FDCWD, _RENAME_NOREPLACE, _RENAME_EXCL = -100, 1, 4


class NoSuchStep(OSError):
    """The file system has neither hard links nor a rename that never replaces, or the two names are
    on different file systems.
    """


def publish(whole: Path, name: Path) -> None:
    """Publish the file `whole` under `name`. Afterwards it may still have its old name, too.

    Raises FileExistsError if the name is taken, NoSuchStep if the file system cannot do it (`errno`
    is EXDEV if another place for `whole` could help), and any other OSError unchanged.
    """
    try:
        os.link(whole, name)
    except FileExistsError:
        # With 2 links, NFS lost the answer to a link that it made, and reports the repeated call.
        if whole.stat().st_nlink == 1:
            raise
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        _rename_new(whole, name)


def publish_or_move(whole: Path, name: Path) -> None:
    """Publish the file `whole` under `name`, unless that is taken. On file systems without such a
    step it is renamed if the name is free, which another process may take at that moment.
    """
    with suppress(FileExistsError):
        try:
            publish(whole, name)
        except NoSuchStep:
            if not name.exists():
                whole.replace(name)


def _rename_new(old: Path, new: Path) -> None:
    """Rename a file unless the new name is taken. Linux supports this on ext4, xfs, btrfs, tmpfs,
    FAT, exFAT and SMB, not on NFS.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = os.fsencode(old), os.fsencode(new)
    if sys.platform == "darwin":
        failed = libc.renamex_np(source, target, _RENAME_EXCL)
    elif hasattr(libc, "renameat2"):
        failed = libc.renameat2(_AT_FDCWD, source, _AT_FDCWD, target, _RENAME_NOREPLACE)
    else:
        raise NoSuchStep(
            errno.ENOSYS, "there is no rename that replaces nothing", str(old), None, str(new)
        )
    if not failed:
        return
    number = ctypes.get_errno()
    kind = NoSuchStep if number in {*UNSUPPORTED, errno.EXDEV} else OSError
    raise kind(number, os.strerror(number), str(old), None, str(new))
