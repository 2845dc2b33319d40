"""Which code a session runs: the hashes of its source files, and which of them changed since the
session before.

The search is bounded, as it runs at each start and its result is kept in the log: only source
files, up to a number and a size, and nothing below hidden folders, virtual environments, state
roots of regrow, and folders with data or with other tools' output.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from regrow.search.events import Opened

SUFFIXES = frozenset({".py", ".pyx", ".sh", ".yaml", ".yml", ".toml", ".ini", ".cfg"})
"""Suffixes of source files. Not .json: trials write it more often than they read it."""
LEFT_OUT = frozenset(
    {
        "__pycache__",
        "node_modules",
        "site-packages",
        "data",
        "datasets",
        "mlruns",
        "mlartifacts",
        "wandb",
    }
)
MOST_FILES = 300
"""Most source files that are hashed, in order of folders and names; they take 25 KB of an event."""
MOST_BYTES = 1 << 20
"""Larger files are left out: they are data, whatever their suffix."""
MOST_ENTRIES = 20_000
"""Most folder entries that are looked at, in case the working folder is a home folder: 0.2 s."""
_NAMED = 3
"""Most files that are named in a line."""


def sources(folder: str, trainable: str) -> dict[str, Any]:
    """Return the keys `code` and `files`.

    `code`: the trainable's `file` and its `sha256` (both missing if it has no file below `folder`),
    the SHA-256 of all source files (`working_dir_sha256`), their number (`files`), and whether
    these are all (`complete`). `files`: the first 16 hex digits of each file's SHA-256, by its path
    below `folder`.
    """
    own = _file(folder, trainable)
    digests: dict[str, str] = {}
    complete = True
    if own is not None:
        digests[own] = _digest(Path(folder, own)) or ""
    for path in walk(Path(folder)):
        if path is None or len(digests) >= MOST_FILES:
            complete = False
            break
        name = path.relative_to(folder).as_posix()
        if name not in digests and (digest := _digest(path)) is not None:
            digests[name] = digest
    whole = hashlib.sha256(
        "".join(f"{name}\0{digests[name]}\n" for name in sorted(digests)).encode()
    ).hexdigest()
    code = {
        "file": own,
        "sha256": digests.get(own or ""),
        "working_dir_sha256": whole,
        "files": len(digests),
        "complete": complete,
    }
    return {
        "code": {key: value for key, value in code.items() if value is not None},
        "files": {name: digests[name][:16] for name in sorted(digests)},
    }


def code_changed(before: Opened, now: Mapping[str, Any]) -> str | None:
    """Return a line about the code that changed since a session; None for no known change."""
    changed = changes(before.environment, now)
    if not changed:
        return None
    when = datetime.fromtimestamp(before.t).strftime("%Y-%m-%d %H:%M")  # noqa: DTZ006 - the user's local time
    return f"code: {changed_names(changed)} since the session of {when}{_commit(now)}"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the source files that differ between two environments, or else ["the commit"]."""
    if "files" not in before or "files" not in now:
        return _commits(before, now) if before and now else []
    old, new = before["files"], now["files"]
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return names or _commits(before, now)


def changed_names(changed: list[str]) -> str:
    """Return the changed names as text: 'train.py, model.py and 4 others changed'."""
    more = len(changed) - _NAMED
    names = changed if more <= 1 else [*changed[:_NAMED], f"{more} others"]
    return (
        f"{' and '.join([', '.join(names[:-1]), names[-1]] if len(names) > 1 else names)} changed"
    )


def _commits(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    old, new = (environment.get("git", {}).get("commit") for environment in (before, now))
    return ["the commit"] if old != new else []


def _commit(environment: Mapping[str, Any]) -> str:
    """Return ' (commit 1a2b3c4, dirty)', or '' outside a repository."""
    git = environment.get("git", {})
    dirty = ", dirty" if git.get("dirty") else ""
    return f" (commit {git['commit'][:7]}{dirty})" if git.get("commit") else ""


def _file(folder: str, trainable: str) -> str | None:
    """Return the trainable's file below the folder: for file.py:name, for package.module:name, or a
    command's script. None if there is none.
    """
    place = trainable.partition(":")[0]
    names = (place, place.replace(".", "/") + ".py") if place and not os.path.isabs(place) else ()
    return next((name for name in names if Path(folder, name).is_file()), None)


def walk(folder: Path) -> Iterator[Path | None]:
    """Yield source files, a folder's before its subfolders'. At the limit, yields None last."""
    left, folders = MOST_ENTRIES, [folder]
    while folders:
        try:
            entries = sorted(os.scandir(folders.pop(0)), key=lambda entry: entry.name)
        except OSError:
            continue
        left -= len(entries)
        if left < 0:
            yield None
            return
        # A virtual environment, or a state root of regrow.
        if {"pyvenv.cfg", ".services"} & {entry.name for entry in entries}:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in LEFT_OUT:
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            # Not entry.is_file, which raises for a link to itself.
            elif Path(entry.name).suffix in SUFFIXES and os.path.isfile(entry):
                yield Path(entry.path)


def _digest(file: Path) -> str | None:
    """Return the file's SHA-256, None if it is too large or cannot be read."""
    try:
        if file.stat().st_size <= MOST_BYTES:
            return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        pass
    return None
