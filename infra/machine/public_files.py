"""Files that others may read, as far as the user's umask lets them. A file is replaced completely
or left unchanged.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

PARTIAL = ".regrow-"
"""Prefix of files that are being written. A remaining one is of a writer that was killed."""


def replace(path: Path, data: Iterable[bytes]) -> None:
    """Write all parts into the file `path`, replacing an existing file or link. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes the file private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
