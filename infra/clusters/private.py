"""Private interfaces of Ray's packer that regrow depends on. A test fails if they change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path


def ignored(folder: Path) -> list[Callable[[Path], bool]]:
    """Return one test for each ignore file of a folder (.gitignore, .rayignore), as Ray reads them:
    whether a path below the folder is left out. The ignore files of folders in it are not read.
    """
    from ray._private.runtime_env.packaging import get_excludes_from_ignore_files

    silent = logging.getLogger("regrow.packed")
    silent.setLevel(logging.ERROR)
    return list(get_excludes_from_ignore_files(folder, include_gitignore=True, logger=silent))
