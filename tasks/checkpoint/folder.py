"""A checkpoint as a local folder: its files and empty folders. Read-only; knows no store."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from regrow.tasks.checkpoint.manifests import Unsound, check_paths
from regrow.tasks.errors import UserError


def contents(folder: Path) -> tuple[list[str], list[str]]:
    """Return the files and the empty folders, as posix paths relative to `folder`, sorted.

    A symbolic link within the folder counts as its target. Raises UserError, naming the path, for
    whatever cannot be restored unchanged on any system: a link out of the folder or in a circle, a
    socket, a name that is not portable, an unreadable file.
    """
    files: list[str] = []
    folders: list[str] = []
    top = folder.resolve(strict=True)

    def walk(at: Path, path: str, above: tuple[Path, ...]) -> None:
        try:
            names = sorted(os.listdir(at))
        except PermissionError:
            raise UserError(
                f"checkpoint: the folder {path!r} may not be read; change its mode"
            ) from None
        if not names and path:
            folders.append(path)
        for name in names:
            entry, below = at / name, f"{path}/{name}" if path else name
            try:
                real = entry.resolve(strict=True)
            except PermissionError:
                raise UserError(
                    f"checkpoint: {below!r} may not be looked at; change the mode of its folder"
                ) from None
            except (OSError, RuntimeError):
                raise UserError(
                    f"checkpoint: the link {below!r} leads nowhere; save what it should point to"
                ) from None
            if not real.is_relative_to(top):
                raise UserError(
                    f"checkpoint: {below!r} is a link out of the folder, to {real}; copy that"
                    " into it"
                )
            mode = real.stat().st_mode
            if stat.S_ISREG(mode):
                if not os.access(real, os.R_OK):
                    raise UserError(f"checkpoint: {below!r} may not be read; change its mode")
                files.append(below)
            elif not stat.S_ISDIR(mode):
                raise UserError(
                    f"checkpoint: {below!r} is neither a file nor a folder; don't save it"
                )
            elif real in above:
                raise UserError(f"checkpoint: {below!r} is a link to a folder that it lies in")
            else:
                walk(real, below, (*above, real))

    walk(top, "", (top,))
    for path in [*files, *folders]:
        if not _encodes(path):
            raise UserError(f"checkpoint: the name {path!r} is not valid UTF-8; choose another one")
    try:
        check_paths(files, folders)
    except Unsound as error:
        raise UserError(f"checkpoint: {error}; choose another name") from None
    return files, folders


def _encodes(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest_of(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file, in hex, and its size in bytes."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return digest.hexdigest(), file.tell()
