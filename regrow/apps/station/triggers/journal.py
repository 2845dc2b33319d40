"""The watcher's journal: what the triggers have seen, which events they found, and which flow runs
were made. It is written before anything is acted on; found events together with the trigger's new
cursor, so that neither exists without the other.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regrow.infra.machine import private_files
from regrow.infra.machine.sqlite import damage, set_aside

JOURNAL = "journal.db"
EARLIER = "journal.jsonl"
"""Name of the journal before it was a database."""
MADE_KEPT = 1000
"""Number of a deployment's events with a flow run that are remembered, to know repeats."""
_TABLES = """
CREATE TABLE IF NOT EXISTS triggers (deployment, kind, PRIMARY KEY (deployment, kind));
CREATE TABLE IF NOT EXISTS cursors (
    deployment, kind, key, value, PRIMARY KEY (deployment, kind, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    n INTEGER PRIMARY KEY, deployment, id, event, made, UNIQUE (deployment, id)
);
"""
"""Keys and values of cursors, and events, are JSON: a path or a payload may be no Unicode. An event
with its flow run is null, and `made` says which, or why there is none.
"""

Cursor = dict[str, Any]


class Journal:
    """The journal at `path`, a sqlite database that is open in one process only.

    A writing method returns when the change is on disk; if it raises OSError, nothing was changed.
    `lost`: why what an earlier process wrote is not known; "": it is.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.lost = path, ""
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            self._open().close()  # rolls back what a killed process was writing
        if damage(path) is not None:
            self.lost = f"their journal was damaged, and is now {set_aside(path)}"
        elif (earlier := path.with_name(EARLIER)).exists():
            kept = earlier.replace(earlier.with_suffix(".aside"))
            self.lost = f"the journal of an earlier version is not read, and is now {kept}"
        self._database = self._open()

    def close(self) -> None:
        self._database.close()

    def deployments(self) -> list[str]:
        return [name for (name,) in self._all("SELECT DISTINCT deployment FROM triggers")]

    def cursor(self, deployment: str, trigger: str) -> Cursor | None:
        """Return a trigger's cursor, None if it has none yet."""
        # One text, as a trigger on files has a key for each of them.
        found = self._all(
            "SELECT (SELECT group_concat(key || ':' || value) FROM cursors WHERE deployment = ?1"
            " AND kind = ?2) FROM triggers WHERE deployment = ?1 AND kind = ?2",
            deployment,
            trigger,
        )
        return dict(json.loads(f"{{{found[0][0] or ''}}}")) if found else None

    def knows(self, deployment: str, event_id: str) -> bool:
        """Return whether the event was found before."""
        query = "SELECT 1 FROM events WHERE deployment = ? AND id = ?"
        return bool(self._all(query, deployment, event_id))

    def waiting(self, deployment: str) -> int:
        """Return how many events of a deployment have no flow run yet."""
        query = "SELECT count(event) FROM events WHERE deployment = ?"
        return int(self._all(query, deployment)[0][0])

    def pending(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the events without a flow run, with their deployments, oldest first."""
        found = self._all("SELECT deployment, event FROM events WHERE event NOT NULL ORDER BY n")
        return [(deployment, json.loads(event)) for deployment, event in found]

    def begin(self, deployment: str, trigger: str, cursor: Mapping[str, Any]) -> None:
        """Record that a trigger starts from this cursor."""
        with self._writing() as database:
            whose = (deployment, trigger)
            database.execute("DELETE FROM cursors WHERE deployment = ? AND kind = ?", whose)
            _put(database, whose, cursor)

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
        with self._writing() as database:
            _put(database, (deployment, trigger), put)
            database.executemany(
                "DELETE FROM cursors WHERE deployment = ? AND kind = ? AND key = ?",
                [(deployment, trigger, json.dumps(key)) for key in drop],
            )
            database.executemany(
                "INSERT OR IGNORE INTO events (deployment, id, event) VALUES (?, ?, ?)",
                [(deployment, event["id"], json.dumps(event)) for event in events],
            )

    def made(self, deployment: str, event_id: str, flow_run: str) -> None:
        """Record that an event has its flow run; `flow_run`: the id, or why there is none."""
        with self._writing() as database:
            database.execute(  # with a new number: what was made first is forgotten first
                "REPLACE INTO events (deployment, id, made) VALUES (?, ?, ?)",
                (deployment, event_id, flow_run),
            )
            database.execute(
                "DELETE FROM events WHERE n IN (SELECT n FROM events WHERE deployment = ? AND"
                " event IS NULL ORDER BY n DESC LIMIT -1 OFFSET ?)",
                (deployment, MADE_KEPT),
            )

    def forget(self, deployment: str) -> None:
        """Record that the deployment is gone; drop all its state."""
        with self._writing() as database:
            database.execute("DELETE FROM triggers WHERE deployment = ?", (deployment,))
            database.execute("DELETE FROM cursors WHERE deployment = ?", (deployment,))
            database.execute("DELETE FROM events WHERE deployment = ?", (deployment,))

    def _open(self) -> sqlite3.Connection:
        """Open the file, readable by its owner only, since payloads may be confidential."""
        os.close(private_files.opener(str(self._path), os.O_RDWR | os.O_CREAT))
        with _as_os_error():
            database = sqlite3.connect(self._path, isolation_level=None)
            try:
                # EXTRA: with the folder, without which a power cut could undo the last change.
                database.executescript(f"PRAGMA synchronous=EXTRA; {_TABLES}")
            except sqlite3.Error:
                database.close()
                raise
        return database

    def _all(self, query: str, *values: str) -> list[Any]:
        with _as_os_error():
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Write what the block does, or, if it fails, nothing."""
        with _as_os_error(), self._database as database:
            database.execute("BEGIN IMMEDIATE")
            yield database


def _put(database: sqlite3.Connection, whose: tuple[str, str], cursor: Mapping[str, Any]) -> None:
    database.execute("INSERT OR IGNORE INTO triggers VALUES (?, ?)", whose)
    database.executemany(
        "REPLACE INTO cursors VALUES (?, ?, ?, ?)",
        [(*whose, json.dumps(key), json.dumps(value)) for key, value in cursor.items()],
    )


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise OSError(f"the journal of triggers: {error}") from error
