"""The database of an embedded Prefect server: whether the installed Prefect can use it.

Nothing here imports Prefect: starting a server must not cost the caller time while it boots.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from regrow.infra.machine.sqlite import damage, is_known, revision, set_aside

_MIGRATIONS = "server/database/_migrations/versions/sqlite"


def replaced(database: Path) -> str | None:
    """Set a database aside with which no server would start. Returns a line for the user about
    that; None if the database is usable or missing.

    The caller holds the server's lock, so no server has the database open.
    """
    why = damage(database)
    if why is None:
        try:
            at = revision(database)
        except sqlite3.Error:  # missing, or without migrations, which the server then makes
            return None
        if at is None or is_known(at, "prefect", _MIGRATIONS):
            return None
        why = "made by another version of Prefect, which this one does not know"
    return (
        f"Prefect's records are unusable ({why}) and in {set_aside(database)} now; experiments lack"
        " nothing, as their logs have all of it; make schedules again, with `regrow schedule`"
    )
