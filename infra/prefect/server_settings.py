"""The settings of the embedded Prefect server, and the variables with which its clients find it and
no other.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from regrow.infra.machine.sqlite import url_of

# Required are the recorder of task runs, the stores of events and logs, and the streams that the UI
# follows. A server that lives only while an experiment runs has no deployments, workers or
# automations to handle; that of a station has.
_STATION_SERVICES = (
    "SCHEDULER",
    "LATE_RUNS",
    "CANCELLATION_CLEANUP",
    "CLEANUP_RECONCILER",
    "FOREMAN",
    "PAUSE_EXPIRATIONS",
    "TRIGGERS",
)
CLIENT_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        # Without a URL every process would start its own server, all with the same sqlite file.
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
)


def server_environment(home: Path, api_url: str, *, schedules: bool) -> dict[str, str]:
    """Return the whole environment of the server for `api_url`; `schedules`: enable the services of
    a station.

    The password is not in it: our own guard in front of the server checks it (`process.py`).
    """
    foreign = (
        "PREFECT_API_",
        "PREFECT_SERVER_",
        "PREFECT_UI_",
        "PREFECT_HOME",
        "PREFECT_PROFILE",
        "PREFECT_LOGGING_",
    )
    settings = {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": url_of(home / "prefect.db", "sqlite+aiosqlite"),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(urllib.parse.urlsplit(api_url).port),
        "PREFECT_SERVER_UI_API_URL": "/api",  # relative: the page may be opened under any name
        # The default lets any web page call this API.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": api_url.removesuffix("/api"),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",  # the template database has them
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "[]",
        # One transaction for many events instead of one each: 7 ms of CPU per task run instead of
        # 29 ms. Shown 1 s later.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        **{
            f"PREFECT_SERVER_SERVICES_{name}_ENABLED": str(schedules).lower()
            for name in _STATION_SERVICES
        },
        **CLIENT_ENVIRONMENT,
    }
    return {**{k: v for k, v in os.environ.items() if not k.startswith(foreign)}, **settings}


def template() -> Path:
    """Return the file of a fresh database, which the first server of this Prefect version leaves
    for later ones.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "regrow" / f"prefect-{version('prefect')}.db"
