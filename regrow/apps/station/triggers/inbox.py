"""Events of hooks that the watcher has to process: files, on disk before the caller's answer."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from regrow.infra.machine import private_files
from regrow.infra.state.places import Places
from regrow.infra.stores.local import sync_folder

UNWANTED_SECONDS = 600.0
"""How long an event without a schedule is kept, since its schedule may not exist yet."""
MOST_WAITING = 1000
"""Maximum number of waiting events; fewer gather while Prefect's server is away for a while."""
_DAMAGED = ".damaged"


class InboxFull(OSError):
    """Too many events wait to accept another one."""


def folder_of(places: Places) -> Path:
    """Return the folder of the watcher's files for a state root."""
    return places.services / "station" / "triggers"


def put(places: Places, name: str, payload: Any, delivery: str | None) -> str:
    """Store an event for the schedule `name`, and return its id once it is on disk.

    `delivery`: the sender's id for it, by which a repeat is recognized as the same event; None:
    each call is another event. Raises OSError; `InboxFull` is one.
    """
    event_id = (
        hashlib.sha256(json.dumps([name, delivery]).encode()).hexdigest()[:32]
        if delivery
        else uuid4().hex
    )
    folder = folder_of(places) / "inbox"
    private_files.folder(folder)
    if sum(1 for _ in folder.iterdir()) >= MOST_WAITING:
        raise InboxFull(
            f"{MOST_WAITING} events wait already, as the station is not up, or Prefect does not"
            " answer"
        )
    content = {
        "name": name,
        "event": {"kind": "hook", "id": event_id, "payload": payload, "time": time.time()},
    }
    private_files.create(folder / f"{event_id}.json", json.dumps(content))
    sync_folder(folder)
    return event_id


def files(places: Places) -> list[Path]:
    """Return the waiting events' files, oldest first."""
    found = []
    for file in (folder_of(places) / "inbox").glob("*"):
        with suppress(OSError):  # removed in the meantime
            age = file.stat().st_mtime
            if file.suffix not in (private_files.PARTIAL, _DAMAGED):
                found.append((age, file))
            elif (
                file.suffix == private_files.PARTIAL and age < time.time() - UNWANTED_SECONDS
            ):  # its writer was killed
                file.unlink(missing_ok=True)
    return [file for _, file in sorted(found)]


def read(file: Path) -> tuple[str, dict[str, Any]]:
    """Return the schedule's name and the event. Raises ValueError for no event, and OSError."""
    try:
        content = json.loads(file.read_bytes())
        name, event = content["name"], content["event"]
        if isinstance(name, str) and all(isinstance(event[key], str) for key in ("id", "kind")):
            return name, event
    except (ValueError, KeyError, TypeError, RecursionError):  # a foreign file, or a disk fault
        pass
    raise ValueError("it is no event of a hook")


def damaged(file: Path) -> Path:
    """Rename an unreadable file so that it is skipped, and return its new path. Raises OSError."""
    return file.rename(file.with_suffix(_DAMAGED))


def is_unwanted(file: Path) -> bool:
    """Return whether it has waited so long that no schedule for it is expected."""
    return file.stat().st_mtime < time.time() - UNWANTED_SECONDS
