"""The sqlite file that MLflow records into, made whole or not at all.

MLflow makes its schema in dozens of transactions, in 1 s. A process that is killed in between leaves a file that
MLflow refuses from then on. So it is made beside its place, from a template where there is one, and then moved in.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from regrow.infra.machine.sqlite import create_database, fill_from_template
from regrow.infra.mlflow import private


def make_sure_of(tracking_uri: str) -> None:
    """Creates the sqlite file of `tracking_uri` with MLflow's schema if it is not there; for other URIs does nothing.

    Raises OSError where the file cannot be written.
    """
    database = _file(tracking_uri)
    if database is not None:
        create_database(database, _fill)


def _file(tracking_uri: str) -> Path | None:
    scheme, _, place = tracking_uri.partition(":///")
    if scheme.split("+")[0] != "sqlite" or "?" in place or place in ("", ":memory:") or place.startswith("file:"):
        return None
    return Path(place).absolute()


def _fill(database: Path) -> None:
    """Copies the template that the first use of this MLflow left (10 ms), or runs MLflow's migrations (1 s)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    template = cache / "regrow" / f"mlflow-{version('mlflow')}.db"
    fill_from_template(database, template, lambda: _migrate(database))


def _migrate(database: Path) -> None:
    from sqlalchemy.exc import OperationalError

    engine = private.engine(f"sqlite:///{database}")
    try:
        private.make_tables(engine)
    except OperationalError as error:
        raise OSError(str(error)) from error
    finally:
        engine.dispose()
