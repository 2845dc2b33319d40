"""A private interface of Ray's packer that regrow depends on. A test fails if it changes."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path


def packed(folder: Path, left_out: list[str]) -> bytes:
    """Return a folder's files as a zip, as Ray packs them for its machines: without what a
    .gitignore names. `left_out`: more of its patterns.
    """
    from ray._private.runtime_env.packaging import create_package

    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "project.zip"
        silent = logging.getLogger("regrow.packed")
        silent.setLevel(logging.ERROR)
        create_package(str(folder), file, include_gitignore=True, excludes=left_out, logger=silent)
        return file.read_bytes()
