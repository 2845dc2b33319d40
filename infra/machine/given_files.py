"""Paths that users write; files there are read only if reading them ends."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from regrow.tasks.errors import UserError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def expanded(written: str | Path, where: str = "") -> Path:
    """Return a path with the folder that its `~` stands for. `where`: begins the message.

    Raises UserError for a user who has none, and for a path with a NUL, which no system takes.
    """
    if "\0" in str(written):
        shown = str(written).replace("\0", "\\0")
        raise UserError(f"{where}{shown}: has a NUL, which no path can have; write it without")
    try:
        return Path(written).expanduser()
    except RuntimeError:
        raise UserError(
            f"{where}{written}: there is no home of this user; write the whole path"
        ) from None


def resolved(written: str | Path, beside: Path = Path(), *, where: str = "") -> Path:
    """Return the absolute path that is meant, without symbolic links; a relative one begins at
    `beside`. Raises UserError as `expanded` does.
    """
    # Not Path.resolve, which raises RuntimeError for a link to itself before Python 3.13.
    return Path(os.path.realpath(beside / expanded(written, where)))


def is_there(path: Path, *, folder: bool = False) -> bool:
    """Return whether there is a file, or a `folder`, at a path.

    Raises UserError where that cannot be known: in a folder that this user may not enter, and for a
    name that is too long.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise UserError(f"{path}: cannot be looked at: {error.strerror}") from None
    except ValueError:  # it has a NUL
        return False
    return stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)


def checked(path: Path, most_bytes: int) -> Path:
    """Return the path of a file that can be read to its end; of a folder, too, which cannot.

    Raises UserError for a pipe, a device, a socket, and a file of more than `most_bytes`; OSError
    if there is none.
    """
    found = path.stat()
    if (kind := _KINDS.get(stat.S_IFMT(found.st_mode))) is not None:
        raise UserError(f"{path}: is {kind}, not a file; write it to a file, and name that")
    if stat.S_ISREG(found.st_mode) and found.st_size > most_bytes:
        raise UserError(
            f"{path}: has {found.st_size:,} bytes; at most {most_bytes:,} are read: is it the file"
            " that you mean?"
        )
    return path
