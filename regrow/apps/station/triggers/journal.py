"""The watcher's journal: what the triggers have seen, which events they found, and which flow runs
were made. One file, written before anything is acted on.

A record is a line: the CRC-32 of the rest, and JSON. A last record that was torn by a kill is cut
off at the next start; a record that the disk has damaged is skipped. A record holds found events
together with the trigger's new cursor, so that neither exists without the other. From time to time
the file is compacted.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from regrow.infra.machine import private_files
from regrow.infra.stores.local import sync_folder

MADE_KEPT = 1000
"""Number of a deployment's events with a flow run that are remembered, to know repeats."""
COMPACT_BYTES = 1 << 20
"""Size from which on the journal is compacted, whenever it has grown to four times the last."""

Cursor = dict[str, Any]


@dataclass(slots=True)
class _Deployment:
    """State of one deployment: the cursor of each of its triggers, and its events by id."""

    cursors: dict[str, Cursor] = field(default_factory=dict)
    pending: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: dict[str, None] = field(default_factory=dict)


class Journal:
    """The journal at `path`, open in one process only.

    A writing method returns when the record is on disk; if it raises OSError, nothing was changed.
    `damaged`: number of records before the last that could not be read. An event whose record is
    lost may start a second run, or none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, _Deployment] = {}
        self.damaged = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        self._size = self._read(data)
        self._least = self._size
        self._file = _opened(path)
        self._file.truncate(self._size)
        os.fsync(self._file.fileno())
        sync_folder(path.parent)

    def close(self) -> None:
        self._file.close()

    def deployments(self) -> list[str]:
        return list(self._known)

    def cursor(self, deployment: str, trigger: str) -> Cursor | None:
        """Return a trigger's cursor, None if it has none yet."""
        return self._of(deployment).cursors.get(trigger)

    def knows(self, deployment: str, event_id: str) -> bool:
        """Return whether the event was found before."""
        known = self._of(deployment)
        return event_id in known.pending or event_id in known.made

    def waiting(self, deployment: str) -> int:
        """Return how many events of a deployment have no flow run yet."""
        return len(self._of(deployment).pending)

    def pending(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the events without a flow run, with their deployments, oldest first of each."""
        return [
            (name, event) for name, known in self._known.items() for event in known.pending.values()
        ]

    def begin(self, deployment: str, trigger: str, cursor: Mapping[str, Any]) -> None:
        """Record that a trigger starts from this cursor."""
        self._write("begin", deployment, trigger=trigger, put=dict(cursor))

    def moved(
        self,
        deployment: str,
        trigger: str,
        put: Mapping[str, Any],
        *,
        drop: Iterable[str] = (),
        events: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Record atomically that a trigger has advanced and found `events`, each with an `id`."""
        found = [dict(event) for event in events]
        self._write(
            "moved", deployment, trigger=trigger, put=dict(put), drop=sorted(drop), events=found
        )

    def made(self, deployment: str, event_id: str, flow_run: str) -> None:
        """Record that an event has its flow run; `flow_run`: the id, or why there is none."""
        self._write("made", deployment, id=event_id, flow_run=flow_run)

    def forget(self, deployment: str) -> None:
        """Record that the deployment is gone; drop all its state."""
        self._write("forget", deployment)

    def _of(self, deployment: str) -> _Deployment:
        return self._known.get(deployment) or _Deployment()

    def _write(self, did: str, deployment: str, **given: Any) -> None:
        record = {"did": did, "of": deployment, **given}
        line = memoryview(_encoded(record))
        self._file.seek(self._size)
        self._file.truncate()  # remove what a failed write has left
        written = 0
        while written < len(line):
            written += self._file.write(line[written:]) or 0
        os.fsync(self._file.fileno())
        self._size += len(line)
        self._apply(record)
        if self._size > max(COMPACT_BYTES, 4 * self._least):
            with suppress(OSError):  # a full disk: the record is written, and a later one tries
                self.compact()

    def compact(self) -> None:
        """Replace the file by one with the same state in as few records as possible."""
        whole = b"".join(map(_encoded, self._snapshot()))
        private_files.replace(self._path, whole)
        self._file.close()  # at once: what was written into it now would be lost
        self._file = _opened(self._path)
        self._size = self._least = len(whole)
        sync_folder(self._path.parent)

    def _snapshot(self) -> Iterable[dict[str, Any]]:
        for name, known in self._known.items():
            for trigger, cursor in known.cursors.items():
                yield {"did": "begin", "of": name, "trigger": trigger, "put": cursor}
            yield {
                "did": "known",
                "of": name,
                "made": list(known.made),
                "events": list(known.pending.values()),
            }

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
                self._known.pop(name, None)

    def _read(self, data: bytes) -> int:
        """Apply the records; return how many bytes are valid."""
        at = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1
            record = _decoded(data[at : end - 1]) if end else None
            if record is None and not 0 < end < len(data):
                return at
            if record is None:
                self.damaged += 1
            else:
                self._apply(record)
            at = end
        return at


def _opened(path: Path) -> FileIO:
    """Open the file, readable by its owner only, since payloads may be confidential."""
    return FileIO(private_files.opener(str(path), os.O_RDWR | os.O_CREAT), "r+")


def _encoded(record: dict[str, Any]) -> bytes:
    content = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _decoded(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None if the line is not a record."""
    mark, _, content = line.partition(b" ")
    if mark != b"%08x" % zlib.crc32(content):
        return None
    return dict(json.loads(content))
