"""The sqlite file that MLflow records into, created atomically.

MLflow creates its schema in dozens of transactions, in 1 s. A process that is killed meanwhile
leaves a file that MLflow refuses from then on. So the file is created beside its place, from a
dump, and then moved into place.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from importlib.metadata import version
from itertools import product
from pathlib import Path

from regrow.infra.machine.sqlite import (
    create_database,
    damage,
    file_of,
    is_current,
    is_known,
    load_dump,
    revision,
    set_aside,
    url_of,
)
from regrow.infra.mlflow import private

_OURS = re.compile(r"(.*/mlflow-artifacts)/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The artifact folder of an experiment of ours; the group is the root of all artifacts."""
MIGRATIONS = "store/db_migrations/versions"
DUMP = Path(__file__).with_name("database.sql")
"""An empty database with all migrations of the MLflow in requirements.lock, as SQL. Written by
`make dumps`."""
_LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def make_sure_of(tracking_uri: str, artifact_root: str | None) -> None:
    """Create the sqlite file of `tracking_uri` with MLflow's schema unless it exists. Does nothing
    for other URIs.

    `artifact_root`: for regrow's own file, the current root of its artifacts; addresses are updated
    if its folder was moved. None: the file is the user's. Raises OSError if the file cannot be
    written.
    """
    database = file_of(tracking_uri)
    if database is not None:
        create_database(database, _fill)
        if artifact_root is not None:
            _follow(database, artifact_root)


def replaced(tracking_uri: str, artifact_root: str | None) -> str | None:
    """Set regrow's own file aside if it is damaged. Returns a line about that, None if nothing was
    done.

    `artifact_root`: as in `make_sure_of`.
    """
    database = file_of(tracking_uri)
    if database is None or artifact_root is None or (why := damage(database)) is None:
        return None
    return (
        f"MLflow's records are damaged ({why}) and in {set_aside(database)} now; each experiment's"
        " runs are written anew from its log, those of another one by `regrow resume`; registered"
        " models, and what you or your code wrote into it, are not"
    )


def of_another_version(tracking_uri: str) -> str | None:
    """Return a line about a file of a newer MLflow, which this one cannot use; else None."""
    database = file_of(tracking_uri)
    try:
        at = None if database is None else revision(database)
    except sqlite3.Error:  # missing, or not MLflow's database
        return None
    if at is None or is_known(at, "mlflow", MIGRATIONS):
        return None
    return (
        f"MLflow's records in {database} were made by another version of MLflow than"
        f" {version('mlflow')}, which cannot use them: this session records nothing in MLflow;"
        " install that version, or move the file away, and `regrow resume` records what is missing"
    )


def _follow(database: Path, artifact_root: str) -> None:
    """Update the addresses of artifacts: MLflow stores whole paths, and a folder may be moved."""
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            locations = connection.execute("select artifact_location from experiments")
            before = {
                found[1] for (place,) in locations if place and (found := _OURS.fullmatch(place))
            } - {artifact_root}
            for root, (table, column) in product(before, _LOCATIONS):
                connection.execute(
                    f"update {table} set {column} = ? || substr({column}, ?) where substr({column},"  # noqa: S608 - constant names
                    " 1, ?) = ?",
                    (artifact_root, len(root) + 1, len(root) + 1, f"{root}/"),
                )
    except sqlite3.Error as error:
        raise OSError(f"{database}: {error}") from error


def _fill(database: Path) -> None:
    load_dump(database, DUMP, "mlflow", MIGRATIONS)
    if not is_current(database, "mlflow", MIGRATIONS):
        from sqlalchemy.exc import OperationalError

        engine = private.engine(url_of(database))
        try:
            private.make_tables(engine)
        except OperationalError as error:
            raise OSError(str(error)) from error
        finally:
            engine.dispose()
