"""Private interfaces of Ray's packer that regrow depends on. A test fails if they change."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path


def packed(folder: Path, left_out: list[str]) -> bytes:
    """Return a folder's files as a zip, as Ray packs them for its machines: without what a
    .gitignore names. `left_out`: more of its patterns.
    """
    from ray._private.runtime_env.packaging import create_package

    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "project.zip"
        create_package(
            str(folder), file, include_gitignore=True, excludes=left_out, logger=_silent()
        )
        return file.read_bytes()


def ignored(folder: Path) -> list[Callable[[Path], bool]]:
    """Return one test for each ignore file of a folder (.gitignore, .rayignore), as Ray reads them:
    whether a path below the folder is left out. The ignore files of folders in it are not read.
    """
    from ray._private.runtime_env.packaging import get_excludes_from_ignore_files

    return list(get_excludes_from_ignore_files(folder, include_gitignore=True, logger=_silent()))


def _silent() -> logging.Logger:
    silent = logging.getLogger("regrow.packed")
    silent.setLevel(logging.ERROR)
    return silent
