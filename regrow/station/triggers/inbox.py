"""What came to a schedule's hook and was not looked at yet: a file each, on disk before the caller hears that it was taken."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from regrow.infra.machine import private_files
from regrow.infra.state.places import Places
from regrow.infra.stores.local import sync_folder

UNWANTED_SECONDS = 600.0
"""How long something stays that no schedule wants, as that may not be there yet."""
_DAMAGED = ".damaged"


def folder_of(places: Places) -> Path:
    """Where the watcher of a state root keeps its files."""
    return places.services / "station" / "triggers"


def put(places: Places, name: str, payload: Any, delivery: str | None) -> str:
    """Keeps what came for the schedule `name`, and returns the event's id when it is on disk.

    `delivery`: the sender's own id for it, with which a repeat is the same event; None: each is another. Raises OSError.
    """
    event_id = hashlib.sha256(json.dumps([name, delivery]).encode()).hexdigest()[:32] if delivery else uuid4().hex
    folder = folder_of(places) / "inbox"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"name": name, "event": {"kind": "hook", "id": event_id, "payload": payload, "time": time.time()}}
    private_files.create(folder / f"{event_id}.json", json.dumps(content))
    sync_folder(folder)
    return event_id


def waiting(places: Places) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """What is there, oldest first: its file, the schedule's name, the event."""
    files = []
    for file in (folder_of(places) / "inbox").glob("*"):
        with suppress(FileNotFoundError):
            files.append((file.stat().st_mtime, file))
    for age, file in sorted(files):
        if file.suffix == _DAMAGED:
            continue
        if file.suffix == private_files.PARTIAL:
            if age < time.time() - UNWANTED_SECONDS:  # its writer was killed
                file.unlink(missing_ok=True)
            continue
        try:
            content = json.loads(file.read_bytes())
            found = file, str(content["name"]), dict(content["event"])
        except (ValueError, KeyError, TypeError):  # not ours, or the disk's fault; it does not hold up the others
            file.rename(file.with_suffix(_DAMAGED))
            continue
        yield found


def is_unwanted(file: Path) -> bool:
    """Whether it has waited for a schedule for so long that none will come."""
    return file.stat().st_mtime < time.time() - UNWANTED_SECONDS
