"""Locks on files, which the kernel keeps for as long as the process lives that took one, and not a moment longer."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

_TICK = 0.01
"""Seconds between two tries."""


def take(path: Path, *, shared: bool = False, wait: float = 0.0) -> IO[str] | None:
    """The file, locked for this process until it is closed; None where others hold the lock for `wait` seconds and more.

    The file is made where there is none; `shared`: beside others who take it shared, too. Raises OSError for a file that
    cannot be made or opened.
    """
    file = path.open("a")
    deadline = time.monotonic() + wait
    while not _locked(file, shared=shared):
        if time.monotonic() >= deadline:
            file.close()
            return None
        time.sleep(_TICK)
    return file


def is_held(path: Path) -> bool:
    """Whether another process has locked the file for itself; False where there is none, or it cannot be opened."""
    try:
        with path.open() as file:
            return not _locked(file, shared=True)
    except OSError:
        return False


def _locked(file: IO[str], *, shared: bool) -> bool:
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
