"""The work pool of scheduled experiments: deployments name it, and the station's worker takes due
runs from it.
"""

from __future__ import annotations

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

POOL = "regrow"
TYPE = "process"
"""The type for `prefect worker start`, which may take runs from the pool, too."""


def ensure_pool(client: SyncPrefectClient) -> None:
    """Create the pool unless it exists."""
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        try:
            client.create_work_pool(
                WorkPoolCreate(name=POOL, type=TYPE, description="Experiments of regrow")
            )
        except ObjectAlreadyExists:  # another process was faster
            return
