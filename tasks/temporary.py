"""A place for temporary folders that do not outlive the process they were made by, however it ends.

A process that is killed removes nothing, and what it leaves (a restored checkpoint, a snapshot on its way) may be gigabytes. So
each process has a room of its own below TMPDIR, `regrow-UID/PID-.../`, and holds a file in it locked for as long as it lives;
whoever makes a room removes those whose lock nobody holds.
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

_LOCK = "in-use"
_MAKING = ".making-"
_MAKING_SECONDS = 600.0
"""A room that nobody has locked by then is not being made any more."""
_rooms: dict[tuple[int, str], Path] = {}
"""By process, as a forked one has its own, and TMPDIR."""
_making = threading.Lock()


def room() -> Path:
    """The one of this process, for `tempfile`'s `dir`. Raises OSError where TMPDIR has no place for it."""
    with _making:
        key = os.getpid(), tempfile.gettempdir()
        if key not in _rooms or not _rooms[key].is_dir():
            _rooms[key] = _made(Path(key[1]) / f"regrow-{os.getuid()}")
        return _rooms[key]


def _made(rooms: Path) -> Path:
    with suppress(FileExistsError):
        rooms.mkdir(mode=0o700)
    found = rooms.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():  # somebody else's, in a folder that is everybody's
        return Path(tempfile.mkdtemp(prefix="regrow-"))
    making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=rooms))
    # Open as long as this process lives; what it starts does not get it, what it forks does.
    lock = os.open(making / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    room = making.with_name(f"{os.getpid()}-{making.name.removeprefix(_MAKING)}")
    making.rename(room)
    atexit.register(_leave, os.getpid(), room)
    # It may be much, and a trial waits.
    threading.Thread(target=_remove_abandoned, args=(rooms,), daemon=True, name="regrow-temporary").start()
    return room


def _leave(pid: int, room: Path) -> None:
    if os.getpid() == pid:
        with suppress(OSError):  # something in it is still used
            if os.listdir(room) == [_LOCK]:
                (room / _LOCK).unlink()
                room.rmdir()


def _remove_abandoned(rooms: Path) -> None:
    for room in rooms.iterdir():
        try:
            lock = os.open(room / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it is being made, or somebody was killed while removing it
            _remove_old(room)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its process lives
            continue
        else:
            if not room.name.startswith(_MAKING):
                shutil.rmtree(room, ignore_errors=True)
            else:
                _remove_old(room)
        finally:
            os.close(lock)


def _remove_old(room: Path) -> None:
    with suppress(OSError):  # gone meanwhile
        if time.time() - room.stat().st_mtime > _MAKING_SECONDS:
            shutil.rmtree(room, ignore_errors=True)
