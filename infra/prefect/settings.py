"""Prefect's settings for every process of ours: what runs log goes to the server, not into the terminal of the live view."""

from __future__ import annotations

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}
