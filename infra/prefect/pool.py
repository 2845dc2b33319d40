"""The work pool of scheduled experiments: deployments name it, and the station's worker takes what is due from it."""

from __future__ import annotations

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

POOL = "regrow"
TYPE = "process"
"""As for `prefect worker start`, which may take runs from it as well."""


def ensure_pool(client: SyncPrefectClient) -> None:
    """Makes the pool if it is not there."""
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        try:
            client.create_work_pool(WorkPoolCreate(name=POOL, type=TYPE, description="Experiments of regrow"))
        except ObjectAlreadyExists:  # another process was faster
            return
