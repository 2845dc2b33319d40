"""Creating a sqlite database atomically, even if processes are killed meanwhile; its URL; checking
for damage.

Standard library only: the embedded Prefect server's process imports it before anything else.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, unquote

from regrow.infra.machine import private_files
from regrow.infra.machine.locks import hold, is_held
from regrow.infra.machine.naming import NoSuchStep, publish

_PLAIN = re.compile(r"[\w/.,+=@~: -]*")
"""Paths without characters that have a meaning in a URL."""


def url_of(database: Path, scheme: str = "sqlite") -> str:
    """Return the URL with which SQLAlchemy opens the file at an absolute path, whatever its name:
    SQLAlchemy does not decode a plain path.
    """
    path = str(database)
    return (
        f"{scheme}:///{path}"
        if _PLAIN.fullmatch(path)
        else f"{scheme}:///file:{quote(path)}?uri=true"
    )


def uri_of(folder: Path) -> str:
    """Return the path of a folder, or its URL if it contains characters with a meaning in URLs."""
    return str(folder) if _PLAIN.fullmatch(str(folder)) else folder.as_uri()


def file_of(url: str) -> Path | None:
    """Return the file in a SQLAlchemy URL, plain or as `url_of` writes it; None for another kind of
    database, or one in memory.
    """
    scheme, _, place = url.partition(":///")
    if scheme.split("+")[0] != "sqlite":
        return None
    if place.startswith("file:/") and place.endswith("?uri=true"):
        return Path(unquote(place.removeprefix("file:").removesuffix("?uri=true")))
    return (
        None
        if "?" in place or place in ("", ":memory:") or place.startswith("file:")
        else Path(place).absolute()
    )


def damage(database: Path) -> str | None:
    """Return what is wrong with a database, in sqlite's words; None if it is intact, missing or
    cannot be read now.

    Reads the whole file: 8 ms for 2 MB.
    """
    try:
        with closing(
            sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            (state,) = connection.execute("pragma quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # missing, or not readable
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if state == "ok" else str(state)


def revision(database: Path) -> str | None:
    """Return the migration with which a database was stamped; None if it has none. Raises
    sqlite3.Error if there is no database.
    """
    with closing(
        sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    ) as connection:
        found = connection.execute("select version_num from alembic_version").fetchone()
    return None if found is None else str(found[0])


def is_known(migration: str, package: str, folder: str) -> bool:
    """Return whether an installed package has a migration in its `folder`. Also True if that cannot
    be determined, as no migrations are found.
    """
    found = find_spec(package)
    if found is None or found.origin is None:
        return True
    texts = [file.read_text() for file in (Path(found.origin).parent / folder).glob("*.py")]
    return not texts or any(f'revision = "{migration}"' in text for text in texts)


def set_aside(database: Path) -> Path:
    """Rename a database and the files that sqlite keeps beside it. Returns its new path."""
    aside = database.with_name(f"{database.name}.aside-{time.strftime('%Y%m%dT%H%M%S')}")
    for rest in ("-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            database.with_name(database.name + rest).rename(aside.with_name(aside.name + rest))
    return database.rename(aside)


def create_database(database: Path, fill: Callable[[Path], None]) -> None:
    """Create `database` unless it exists. `fill` writes it to the path that it gets.

    If another process was faster, its file is kept. Remains of a killed process are removed.
    """
    _sweep(database)
    if database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=database.parent, prefix=f".{database.name}.making-"))
    # Held while this process lives: the next process recognises abandoned folders by it.
    with open(making / "lock", "a", opener=private_files.opener) as lock:
        hold(lock)
        try:
            whole = making / database.name
            fill(whole)
            whole.chmod(0o600)
            with suppress(FileExistsError):
                _publish(whole, database)
        finally:
            shutil.rmtree(making, ignore_errors=True)


def fill_from_template(database: Path, template: Path, make: Callable[[], None]) -> None:
    """Copy `template` to `database`. Without a valid template, `make` makes the database, which is
    then saved as the template.

    The caller puts the version of the software that made a template into its name. Raises what
    `make` raises. A template that cannot be read or written, or that another user has written, only
    costs time.
    """
    if template.exists() and template.stat().st_uid in (os.getuid(), 0):
        try:
            copy_database(template, database)
            return
        except (OSError, sqlite3.Error):  # unreadable or torn: treat it as missing
            database.unlink(missing_ok=True)
    make()
    # A cache that cannot be written only costs the next user time.
    with suppress(OSError, sqlite3.Error):
        template.parent.mkdir(parents=True, exist_ok=True)
        copy_database(database, template)


def copy_database(source: Path, target: Path) -> None:
    """Copy a sqlite database atomically. Raises OSError or sqlite3.Error."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as origin:
            (state,) = origin.execute("pragma quick_check").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(f"{source}: {state}")
            os.close(private_files.opener(str(partial), os.O_WRONLY | os.O_CREAT))
            with closing(sqlite3.connect(partial)) as copy:
                origin.backup(copy)
                copy.execute("pragma journal_mode = delete")  # else readers must write, too
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _publish(whole: Path, database: Path) -> None:
    try:
        publish(whole, database)
    except NoSuchStep:
        if database.exists():
            raise FileExistsError(database) from None
        whole.replace(database)


def _sweep(database: Path) -> None:
    for left in database.parent.glob(f".{database.name}.making-*"):
        # A folder without a lock file is only a moment old, or its process was killed before
        # locking it. It holds 0 bytes and is kept.
        if (left / "lock").exists() and not is_held(left / "lock"):
            shutil.rmtree(left, ignore_errors=True)
