"""The folder in which a program saves its checkpoints: detecting changes, and copying."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from regrow.tasks.errors import UserError
from regrow.tasks.process.disk import file_states, is_full
from regrow.tasks.trial.trial import NotSaved


class SavedFolder:
    """A folder that a program writes to: a checkpoint is a copy after a change between reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before: dict[str, tuple[int, int, int]] = {}

    def changed(self) -> bool:
        """Return whether the folder has changed since the last call."""
        before, self._before = self._before, file_states(self._path)
        return bool(self._before) and self._before != before

    def copy(self, folder: Path) -> None:
        """Copy the folder in its state at the last `changed`.

        Hard links would not work: many libraries overwrite files in place.

        Raises:
            NotSaved: the folder has been written to since.
            UserError: something cannot be copied, such as a socket or an unreadable file.

        """
        try:
            shutil.copytree(self._path, folder, dirs_exist_ok=True, copy_function=self._copied)
            same = file_states(self._path) == self._before
        except (OSError, shutil.Error) as error:
            if not _vanished(error):
                if is_full(error, folder):
                    raise
                first = str(error.args[0][0][2] if isinstance(error, shutil.Error) else error)
                raise UserError(
                    f"the checkpoint cannot be saved: {first.replace(f'{self._path}/', '')}"
                ) from None
            same = False
        if not same:
            raise NotSaved(
                "its files were written to while they were copied; save first, then report"
            )

    def _copied(self, source: str, target: str) -> None:
        # reading a device never ends, and reading a fifo never begins
        if not stat.S_ISREG(os.stat(source).st_mode):
            name = os.path.relpath(source, self._path)
            raise UserError(
                f"the checkpoint cannot be saved: {name!r} is neither a file nor a folder; don't"
                " save it"
            )
        shutil.copy2(source, target)


def _vanished(error: OSError | shutil.Error) -> bool:
    """Return whether the only problem is that files were removed meanwhile."""
    if isinstance(error, shutil.Error):
        return all(not os.path.lexists(source) for source, _, _ in error.args[0])
    return isinstance(error, FileNotFoundError)
