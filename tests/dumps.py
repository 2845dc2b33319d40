"""Write the dumps of the databases that regrow gives to Prefect and MLflow, by their own migrations:
`make dumps`, after a change of their versions in requirements.lock.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from regrow.infra.machine.sqlite import url_of


def migrated(folder: Path) -> dict[str, Path]:
    """Create a database in `folder` by the migrations of each installed package. Returns the files.

    Prefect reads its settings when it is imported, so a process calls this once at most.
    """
    prefect, mlflow = folder / "prefect.db", folder / "mlflow.db"
    os.environ["PREFECT_HOME"] = str(folder)
    os.environ["PREFECT_API_DATABASE_CONNECTION_URL"] = url_of(prefect, "sqlite+aiosqlite")
    asyncio.run(_prefect())
    from regrow.infra.mlflow import private

    engine = private.engine(url_of(mlflow))
    private.make_tables(engine)
    engine.dispose()
    return {"prefect": prefect, "mlflow": mlflow}


async def _prefect() -> None:
    from prefect.server.database import provide_database_interface

    database = provide_database_interface()
    await database.create_db()
    await (await database.engine()).dispose()


def main() -> None:
    """Write both dumps."""
    with tempfile.TemporaryDirectory() as folder:
        for package, database in migrated(Path(folder)).items():
            with closing(sqlite3.connect(database)) as connection:
                text = "\n".join(connection.iterdump())
            Path("infra", package, "database.sql").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
