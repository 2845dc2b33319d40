"""What the watcher has seen, what it found, and what it has made of that: one file, on disk before anything is done about it.

A record is a line: the CRC-32 of the rest, and JSON. One over which a process died is cut off at the next start. A record
holds what was found together with how far its trigger has looked, so that neither is there without the other.
From time to time the file is replaced by a shorter one that says the same.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from regrow.infra.machine import private_files
from regrow.infra.stores.local import sync_folder
from regrow.tasks.errors import RegrowError

MADE_KEPT = 1000
"""Events of a deployment that are remembered after their flow runs were made: a repeat of one of them is known."""
COMPACT_BYTES = 1 << 20
"""From this length on, the journal is rewritten whenever it is four times as long as after the last time."""

Cursor = dict[str, Any]


@dataclass(slots=True)
class _Deployment:
    """What is known of one deployment: how far each of its triggers has looked, and its events by their ids."""

    cursors: dict[str, Cursor] = field(default_factory=dict)
    pending: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: dict[str, None] = field(default_factory=dict)


class Journal:
    """The file at `path`. Only one process may have it. Raises RegrowError for one that is damaged before its last record.

    A method that writes returns when it is on disk; where it raises OSError, nothing was changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, _Deployment] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        self._size = self._read(data)
        self._least = self._size
        self._file = _opened(path)
        self._file.truncate(self._size)
        os.fsync(self._file.fileno())
        sync_folder(path.parent)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def deployments(self) -> list[str]:
        """Those of which anything is known."""
        return list(self._known)

    def cursor(self, deployment: str, trigger: str) -> Cursor | None:
        """How far a trigger has looked; None: it never did."""
        known = self._known.get(deployment)
        return known.cursors.get(trigger) if known else None

    def knows(self, deployment: str, event_id: str) -> bool:
        """Whether the event was found before."""
        known = self._known.get(deployment)
        return known is not None and (event_id in known.pending or event_id in known.made)

    def pending(self) -> list[tuple[str, dict[str, Any]]]:
        """Deployments and the events of which no flow run was made yet, oldest first."""
        return [(name, event) for name, known in self._known.items() for event in known.pending.values()]

    def begin(self, deployment: str, trigger: str, cursor: Mapping[str, Any]) -> None:
        """A trigger looks from here on."""
        self._write({"did": "begin", "of": deployment, "trigger": trigger, "put": dict(cursor)})

    def moved(
        self, deployment: str, trigger: str, put: Mapping[str, Any], *, drop: Iterable[str] = (),
        events: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """A trigger has looked further, and has found `events`, which have an `id` each: all of it at once."""
        record: dict[str, Any] = {"did": "moved", "of": deployment, "trigger": trigger, "put": dict(put)}
        record |= {"drop": sorted(drop), "events": [dict(event) for event in events]}
        self._write(record)

    def made(self, deployment: str, event_id: str, flow_run: str) -> None:
        """The flow run of an event is there; `flow_run`: its id, or why there can be none."""
        self._write({"did": "made", "of": deployment, "id": event_id, "flow_run": flow_run})

    def forget(self, deployment: str) -> None:
        """The deployment is gone, and so is all that was known of it."""
        self._write({"did": "forget", "of": deployment})

    def _write(self, record: dict[str, Any]) -> None:
        line = memoryview(_encoded(record))
        self._file.seek(self._size)
        self._file.truncate()  # what is left of one that failed
        written = 0
        while written < len(line):
            written += self._file.write(line[written:]) or 0
        os.fsync(self._file.fileno())
        self._size += len(line)
        self._apply(record)
        if self._size > max(COMPACT_BYTES, 4 * self._least):
            self.compact()

    def compact(self) -> None:
        """Replaces the file by one that says the same in as few records as possible."""
        whole = b"".join(map(_encoded, self._snapshot()))
        private_files.replace(self._path, whole)
        sync_folder(self._path.parent)
        self._file.close()
        self._file = _opened(self._path)
        self._size = self._least = len(whole)

    def _snapshot(self) -> Iterable[dict[str, Any]]:
        for name, known in self._known.items():
            for trigger, cursor in known.cursors.items():
                yield {"did": "begin", "of": name, "trigger": trigger, "put": cursor}
            yield {"did": "known", "of": name, "made": list(known.made), "events": list(known.pending.values())}

    def _apply(self, record: dict[str, Any]) -> None:
        name = record["of"]
        known = self._known.setdefault(name, _Deployment())
        match record["did"]:
            case "begin":
                known.cursors[record["trigger"]] = dict(record["put"])
            case "moved":
                cursor = known.cursors.setdefault(record["trigger"], {})
                cursor.update(record["put"])
                for key in record["drop"]:
                    cursor.pop(key, None)
                known.pending.update((event["id"], event) for event in record["events"])
            case "made":
                known.pending.pop(record["id"], None)
                known.made[record["id"]] = None
                while len(known.made) > MADE_KEPT:
                    del known.made[next(iter(known.made))]
            case "known":
                known.made.update(dict.fromkeys(record["made"]))
                known.pending.update((event["id"], event) for event in record["events"])
            case "forget":
                del self._known[name]

    def _read(self, data: bytes) -> int:
        """Applies the records; returns how many bytes of them count."""
        at = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1
            record = _decoded(data[at : end - 1]) if end else None
            if record is None:
                if end and end < len(data):
                    raise RegrowError(
                        f"{self._path} is damaged at byte {at}; move it away: "
                        "triggers then begin with what there is now, and what happened meanwhile starts nothing"
                    )
                return at
            self._apply(record)
            at = end
        return at


def _opened(path: Path) -> FileIO:
    """The file, for its owner alone: a payload may be nobody else's business."""
    return FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")


def _encoded(record: dict[str, Any]) -> bytes:
    content = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _decoded(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None for what is none."""
    mark, _, content = line.partition(b" ")
    if mark != b"%08x" % zlib.crc32(content):
        return None
    return dict(json.loads(content))
