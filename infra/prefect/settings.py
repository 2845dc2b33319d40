"""Prefect's settings for every process of ours: what runs log goes to the server, not into the terminal of the live view."""

from __future__ import annotations

from collections.abc import Mapping

from regrow.infra.machine.surroundings import direct
from regrow.infra.prefect.server_settings import CLIENT_ENVIRONMENT

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}
_TRIES = "PREFECT_CLIENT_MAX_RETRIES"


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a session runs, beside those of its server."""
    retries = {_TRIES: environment.get(_TRIES, "3")}  # 14 s in all; else a minute
    return {**QUIET, **CLIENT_ENVIRONMENT, **retries, **direct(environment)}
