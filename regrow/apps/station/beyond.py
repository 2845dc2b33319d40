"""A station that listens on more than the loopback: the setting for its parts, and the instructions
for people.

Ray and the S3 server always stay on the loopback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from regrow.infra.machine import addresses
from regrow.infra.state import passwords
from regrow.infra.state.passwords import USER
from regrow.infra.state.places import Places
from regrow.infra.state.station_record import Station

HOST = "REGROW_STATION_HOST"
"""Variable with the additional address on which the station listens; unset: loopback only."""


def host() -> str | None:
    """Return the additional address on which this process's station listens, None for loopback
    only.
    """
    return os.environ.get(HOST) or None


def how_to_hand_on(places: Places, station: Station, where: str) -> Iterator[str]:
    """Yield instructions for people, without passwords."""
    file = passwords.file_of(places.services)
    name, prefect = addresses.names(where)[0], station.prefect_url.rpartition(":")[2]
    yield f"it listens at {where}, too; its passwords are in {file}, which only you can read"
    yield f'page:    user {USER}, password "page" of that file'
    yield (
        f'MLflow:  user {USER}, password "mlflow"; Prefect: {USER}:PASSWORD as one word, password'
        ' "prefect"'
    )
    yield (
        "none of this is encrypted: have a VPN, an SSH tunnel or a proxy with TLS between; a"
        " colleague sets"
    )
    yield f"  PREFECT_API_URL=http://{name}:{prefect}/api"
    yield f"  PREFECT_API_AUTH_STRING={USER}:PASSWORD"
    yield f"  MLFLOW_TRACKING_URI={station.mlflow_url}"
    yield f"  MLFLOW_TRACKING_USERNAME={USER}"
    yield "  MLFLOW_TRACKING_PASSWORD=PASSWORD"
