"""The folder into which a program saves its checkpoints, as seen from the attempt: what is new in it, and a copy of that."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from regrow.tasks.trial import NotSaved

_State = dict[str, tuple[int, int, int]]


class SavedFolder:
    """A folder that somebody else writes. A checkpoint is what changed in it between two reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before: _State = {}

    def changed(self) -> bool:
        """Whether there is something new since the last call."""
        before, self._before = self._before, self._state()
        return bool(self._before) and self._before != before

    def copy(self, folder: Path) -> None:
        """Copies it as it was at the last `changed`. Raises NotSaved if it has been written to since.

        Hard links would not do: many libraries write a file anew in its place.
        """
        try:
            shutil.copytree(self._path, folder, dirs_exist_ok=True)
            same = self._state() == self._before
        except (OSError, shutil.Error) as error:
            if not _vanished(error):
                raise
            same = False
        if not same:
            raise NotSaved("its files were written to while they were copied; save first, then report")

    def _state(self) -> _State:
        """Size, time of change and identity of each file."""
        found: _State = {}
        for place, _, names in os.walk(self._path):
            for name in names:
                path = os.path.join(place, name)
                try:
                    seen = os.stat(path)
                except FileNotFoundError:
                    continue
                found[path] = seen.st_size, seen.st_mtime_ns, seen.st_ino
        return found


def _vanished(error: OSError | shutil.Error) -> bool:
    """Whether files were removed meanwhile, and nothing else is wrong."""
    if isinstance(error, shutil.Error):
        return all(not os.path.lexists(source) for source, _, _ in error.args[0])
    return isinstance(error, FileNotFoundError)
