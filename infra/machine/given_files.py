"""Paths that users write; files there are read only if reading them ends."""

from __future__ import annotations

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

    Raises UserError for a user who has none.
    """
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
