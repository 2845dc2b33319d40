"""File locks, which the kernel keeps exactly as long as the process that took them lives.

A lock file belongs to this user: a file that another user may write or lock proves nothing, and
symbolic links are not followed. Standard library only, except for the error: the embedded Prefect
server's process imports it before anything else.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import IO

from regrow.infra.machine import private_files
from regrow.tasks.errors import UserError

_TICK = 0.01
"""Seconds between two tries."""
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


class NoLocks(UserError):
    """The file system has no locks. Nothing else shows whether a process still lives that was
    killed or runs on another host.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return (
            f"{os.path.dirname(self.path)} is on a file system without locks (flock: {self.why}),"
            " by which processes know of each other; choose a folder on another one (--state or"
            " REGROW_STATE), or mount this one with locks"
        )


def acquire(path: Path, *, shared: bool = False, wait: float = 0.0) -> IO[str] | None:
    """Lock a file for this process until the file is closed. Returns None if others still hold the
    lock after `wait` seconds.

    The file is created if missing. `shared`: allows other shared holders. Raises OSError for a file
    that cannot be created or opened, or is a symbolic link, and NoLocks.
    """
    file = open(path, "a", opener=private_files.opener)  # noqa: SIM115 - the caller closes it
    deadline = time.monotonic() + wait
    try:
        while not _locked(file, shared=shared):
            if time.monotonic() >= deadline:
                file.close()
                return None
            time.sleep(_TICK)
    except NoLocks:
        file.close()
        raise
    return file


def is_held(path: Path) -> bool:
    """Return whether another process has locked this user's file exclusively."""
    try:
        with open(path, opener=private_files.opener) as file:
            return os.fstat(file.fileno()).st_uid == os.getuid() and not _locked(file, shared=True)
    except (OSError, NoLocks):
        return False


def lock_file(file: IO[str]) -> None:
    """Lock an open file for this process, waiting without limit. Raises NoLocks."""
    _flock(file, fcntl.LOCK_EX)


def _locked(file: IO[str], *, shared: bool) -> bool:
    try:
        _flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _flock(file: IO[str], how: int) -> None:
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise NoLocks(file.name, error.strerror or "") from error
        raise
