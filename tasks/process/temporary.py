"""Temporary folders that do not outlive the process that made them, however it ends.

A killed process removes nothing, and its leftovers (a restored checkpoint, a snapshot in progress)
may be gigabytes. So each process has a folder below TMPDIR, `regrow-UID/PID/` (its room), with a
file that it keeps locked while it lives. A process that makes a room removes all rooms without a
held lock. TMPDIR may be shared by all users; `regrow-UID` is accessible to its owner only.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from regrow.tasks.process import background

_LOCK = "in-use"
_MAKING = ".making-"
_rooms: dict[tuple[int, str], Path] = {}
"""Rooms by process (a forked one needs a new room) and TMPDIR."""
_NAME_BYTES = 10
"""Bytes of a room's name at most: seven digits, and a suffix that distinguishes rooms of equal
process IDs (containers that share a TMPDIR).
"""
_making = threading.Lock()


def process_temp_dir(base: str | None = None) -> Path:
    """Return this process's room below `base` (None: TMPDIR), for `tempfile`. Raises OSError."""
    with _making:
        key = os.getpid(), base or tempfile.gettempdir()
        if key not in _rooms or not _rooms[key].is_dir():
            rooms = own(key[1])
            _rooms[key] = _made_room(
                rooms if rooms is not None else Path(tempfile.mkdtemp(prefix="regrow-", dir=key[1]))
            )
        return _rooms[key]


def made(prefix: str) -> Path:
    """Make a folder in this process's room and return it; the caller removes it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=process_temp_dir()))


def longest(base: str) -> int:
    """Return the maximum length in bytes of a room's path below `base`."""
    return len(os.fsencode(_of_user(base))) + 1 + _NAME_BYTES


def is_room(folder: Path) -> bool:
    """Return whether a process made the folder for its temporary files."""
    return (folder / _LOCK).exists()


def own(base: str | None = None) -> Path | None:
    """Return the user's folder below `base`, for the user only; None if another one has it."""
    folder = _of_user(base or tempfile.gettempdir())
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return None
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def _of_user(base: str) -> Path:
    return Path(base) / f"regrow-{os.getuid()}"


def _made_room(rooms: Path) -> Path:
    making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=rooms))
    # Stays open while this process lives; forked children inherit it, started programs do not.
    lock = os.open(making / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    # a file system without locks: abandoned rooms cannot be recognized, and stay
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)
    folder = _named(making)
    atexit.register(_leave, os.getpid(), folder)
    # In a thread: removing may take long, and a trial waits.
    background.start(_remove_abandoned, rooms, name="temporary")
    return folder


def _named(making: Path) -> Path:
    for more in range(100):
        folder = making.with_name(f"{os.getpid()}-{more}" if more else str(os.getpid()))
        with suppress(OSError):  # the name is taken by a killed process, or in another container
            return making.rename(folder)
    return making


def _leave(pid: int, folder: Path) -> None:
    if os.getpid() == pid:
        with suppress(OSError):  # something in the room is still used
            if os.listdir(folder) == [_LOCK]:
                (folder / _LOCK).unlink()
                folder.rmdir()
                if folder.parent.name != _of_user("").name:
                    folder.parent.rmdir()


def _remove_abandoned(rooms: Path) -> None:
    for folder in rooms.iterdir():
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it is being made, or a process was killed while removing it
            _remove_old(folder)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its process lives
            continue
        else:
            if not folder.name.startswith(_MAKING):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                _remove_old(folder)
        finally:
            os.close(lock)


def _remove_old(folder: Path) -> None:
    with suppress(OSError):  # gone meanwhile
        if time.time() - folder.stat().st_mtime > 600.0:  # else it may be in creation
            shutil.rmtree(folder, ignore_errors=True)
