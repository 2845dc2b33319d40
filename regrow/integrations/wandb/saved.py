"""Files that a program saves with W&B, as checkpoints: each belongs to the row that is logged after
it was saved.

A row that is logged before, or under the same step, may be older than the file; the next one is
not. If the program then resumes from an older state than the row's, it logs existing steps again,
which are ignored (`rows.py`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NOTED = "regrow-wandb.json"
"""File beside the program's with the step at which W&B continues, and the last value."""


class SavedFiles:
    """The files of one attempt. `restored`: folder of the previous attempt's, None for none."""

    def __init__(self, scratch: Path, checkpoint: Path, restored: Path | None) -> None:
        self._new, self._ready = scratch / "wandb" / "new", scratch / "wandb" / "ready"
        self._checkpoint, self._restored = checkpoint, restored
        self._first = True

    @property
    def waiting(self) -> bool:
        """Whether there are files that belong to no row yet."""
        return self._new.exists() or self._ready.exists()

    def before(self) -> dict[str, Any] | None:
        """Return what `publish` noted in the checkpoint to resume from; None without one."""
        if self._restored is None:
            return None
        try:
            return dict(json.loads((self._restored / _NOTED).read_text()))
        except FileNotFoundError:  # the program saved the checkpoint in another way
            return None

    def keep(self, source: Path, name: str) -> None:
        """Copy a file in its current state."""
        # Keeps files that are saved only once, such as a vocabulary.
        if self._first and self._restored is not None:
            shutil.copytree(self._restored, self._new, dirs_exist_ok=True)
        self._first = False
        target = self._new / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)

    def assign_to_row(self) -> None:
        """Assign the saved files to the next row."""
        _move(self._new, self._ready)

    def discard(self) -> None:
        """Drop the assigned files: the checkpoint to resume from has them already."""
        shutil.rmtree(self._ready, ignore_errors=True)
        self._first = True

    def publish(self, noted: Mapping[str, float]) -> None:
        """Make the assigned files the checkpoint of the row that is reported next."""
        if self._ready.exists():
            _move(self._ready, self._checkpoint)
            (self._checkpoint / _NOTED).write_text(json.dumps(noted))

    def restore(self, name: str, folder: Path) -> Path:
        """Copy a file that an earlier attempt saved into a folder, or raise ValueError."""
        source = None if self._restored is None else self._restored / stored_as(Path(name), None)
        if source is None or not source.is_file():
            raise ValueError(f"wandb.restore: no attempt of this trial has saved {name!r}")
        target = folder / stored_as(Path(name), None)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        return target


def stored_as(path: Path, base: Path | None) -> str:
    """Return a kept file's name: its path, relative to `base` (None: as it is); of one that leads
    elsewhere the last part.
    """
    normal = os.path.normpath(path if base is None else os.path.relpath(path, base))
    return path.name if os.path.isabs(normal) or normal.startswith("..") else normal


def _move(source: Path, target: Path) -> None:
    for file in [path for path in source.rglob("*") if path.is_file()]:
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
    shutil.rmtree(source, ignore_errors=True)
