"""Making a sqlite database that is there whole or not at all, whatever is killed meanwhile.

Standard library only: the embedded Prefect server's process imports it before anything else.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from regrow.infra.machine.locks import is_held


def create_database(database: Path, fill: Callable[[Path], None]) -> None:
    """Create `database` unless it exists, by what `fill` writes to the path that it is given.

    If another process was faster, its file is left as it is. What a killed process left behind is removed.
    """
    _sweep(database)
    if database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=database.parent, prefix=f".{database.name}.making-"))
    # Held while this process lives: by it the next one knows a folder that nobody fills any more.
    with (making / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            whole = making / database.name
            fill(whole)
            with suppress(FileExistsError):
                _publish(whole, database)
        finally:
            shutil.rmtree(making, ignore_errors=True)


def fill_from_template(database: Path, template: Path, make: Callable[[], None]) -> None:
    """Copy `template` to `database`; where there is no sound one, `make` makes the database, and leaves it as the template.

    The caller names a template by the version of what it was made with. Raises what `make` raises; a template that cannot
    be read or written only costs time.
    """
    if template.exists():
        try:
            copy_database(template, database)
            return
        except (OSError, sqlite3.Error):  # unreadable or torn: as if there were none
            database.unlink(missing_ok=True)
    make()
    with suppress(OSError, sqlite3.Error):  # a cache that can't be written only costs the next user time
        template.parent.mkdir(parents=True, exist_ok=True)
        copy_database(database, template)


def copy_database(source: Path, target: Path) -> None:
    """Copy a sqlite database, whole or not at all. Raises OSError or sqlite3.Error."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as origin:
            (state,) = origin.execute("pragma quick_check").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(f"{source}: {state}")
            with closing(sqlite3.connect(partial)) as copy:
                origin.backup(copy)
                copy.execute("pragma journal_mode = delete")  # else readers need to write beside it
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _publish(whole: Path, database: Path) -> None:
    try:
        os.link(whole, database)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if database.exists():
            raise FileExistsError(database) from None
        whole.replace(database)


def _sweep(database: Path) -> None:
    for left in database.parent.glob(f".{database.name}.making-*"):
        # One without a lock is a moment old, or was left in the moment before it had one: 0 bytes, and left alone.
        if (left / "lock").exists() and not is_held(left / "lock"):
            shutil.rmtree(left, ignore_errors=True)
