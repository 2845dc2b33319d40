"""Destinations of output: a file, which is replaced atomically, a pipe, a device, a descriptor."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from regrow.infra.machine import public_files
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import printable

_DESCRIPTORS = re.compile(rf"/proc/{os.getpid()}(/task/\d+)?/fd|/dev/fd")
"""Folders whose entries are the open files of this process."""


def is_stream(path: Path) -> bool:
    """Return whether `path` is a stream, no regular or new file. Raises UserError for neither."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refused(path, error) from None
    if stat.S_ISDIR(mode):
        raise UserError(f"{path} is a folder; name a file in it")
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    if not stat.S_ISREG(mode):
        raise UserError(
            f"{path} is no file, but a {'disk' if stat.S_ISBLK(mode) else 'socket'}; name a file"
        )
    return False


def put(path: Path, data: Iterable[bytes]) -> None:
    """Write all parts; a regular file, also behind a link, is replaced completely or left
    unchanged.

    Opening a pipe waits for its reader. Raises UserError if it cannot be written.
    """
    try:
        if (number := _descriptor(path)) is not None:
            # Used as open: opening it again would start at its beginning.
            with open(number, "wb", closefd=False) as file:
                file.writelines(data)
        elif is_stream(path):
            with path.open("wb", buffering=0) as stream:
                for part in data:
                    rest = memoryview(part)
                    while rest:
                        rest = rest[stream.write(rest) :]
        else:
            public_files.replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise _refused(path, error) from None


def print_message(path: Path, line: str) -> None:
    """Print a message on standard output; on standard error if `path` is standard output."""
    print(printable(line), file=sys.stderr if _descriptor(path) == 1 else sys.stdout)


def _descriptor(path: Path) -> int | None:
    """Return which open descriptor of this process `path` is (/dev/stdout); None for none."""
    if _DESCRIPTORS.fullmatch(os.path.realpath(path.parent)) and path.name.isdigit():
        return int(path.name)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if os.path.samestat(path.stat(), os.fstat(number)):
                stream.flush()
                return number
        except OSError:
            continue
    return None


def _refused(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be written: {error.strerror}")
