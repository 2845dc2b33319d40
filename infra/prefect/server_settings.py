"""The settings of the embedded Prefect server, and the variables by which its clients find it and no other."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

# Needed are the recorder of task runs, the stores of events and logs and the streams that the UI follows. A server
# that lives only while an experiment runs has no deployments, workers or automations to look after; that of a station has.
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
        # Without a URL every process would start a server of its own, and they fight over one sqlite file.
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
)


def server_environment(
    home: Path, api_url: str, *, schedules: bool, auth: str | None = None, host: str | None = None
) -> dict[str, str]:
    """The whole environment of the server that is to answer at `api_url`; `schedules`: with the services of a station.

    `auth`: `USER:PASSWORD` that it asks for, None for nothing. `host`: where it listens beside the loopback.
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
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect.db'}",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(urllib.parse.urlsplit(api_url).port),
        "PREFECT_SERVER_UI_API_URL": api_url if host is None else "/api",  # under whichever name it was opened
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": api_url.removesuffix("/api"),  # the default lets any web page call this API
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",  # the template has them
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "[]",
        # One transaction for many events instead of one each: 7 ms of CPU for a task run instead of 29 ms.
        # Shown 1 s later.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": str(schedules).lower() for name in _STATION_SERVICES},
        **CLIENT_ENVIRONMENT,
        **({} if auth is None else {"PREFECT_SERVER_API_AUTH_STRING": auth, "PREFECT_API_AUTH_STRING": auth}),
    }
    return {**{k: v for k, v in os.environ.items() if not k.startswith(foreign)}, **settings}


def template() -> Path:
    """The file of a fresh database, which the first server of this Prefect leaves for the next."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "regrow" / f"prefect-{version('prefect')}.db"
