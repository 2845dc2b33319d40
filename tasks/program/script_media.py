"""Media of a script that runs as a trial: its attempt copies them from a file. Imports little, and
nothing beside the standard library.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from regrow.tasks.media.content import Content
from regrow.tasks.media.items import checked
from regrow.tasks.media.log import MediaLog


class ScriptMedia(MediaLog):
    """Sends what a script logs to its attempt. Does nothing in a process that runs no trial."""

    def __init__(self, send: Callable[[str, Content, Path], None]) -> None:
        """`send`: has the attempt copy a file, and returns when it has done so."""
        self._send = send

    def log_media(self, name: str, make: Callable[[], Content]) -> None:
        """See MediaLog."""
        checked(name)
        scratch = os.environ.get("REGROW_SCRATCH")
        if not scratch or not os.environ.get("REGROW_SOCKET"):
            return
        content = make()
        if isinstance(content.data, Path):
            self._send(name, content, content.data.absolute())
            return
        handle, path = tempfile.mkstemp(prefix="media-", dir=scratch)
        try:
            with open(handle, "wb") as file:
                file.write(content.data)
            self._send(name, content, Path(path))
        finally:
            Path(path).unlink(missing_ok=True)
