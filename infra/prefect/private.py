"""Private interfaces of Prefect's engines, events, settings and server that regrow depends on.

Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.objects import State, TaskRun
from prefect.context import refresh_global_settings_context
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker, emit_events_to_cloud
from prefect.flow_engine import run_flow
from prefect.logging.configuration import setup_logging
from prefect.settings import get_current_settings
from prefect.task_engine import run_task_async
from prefect.utilities.engine import emit_task_run_state_change_event

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["run_flow", "run_task_async"]

CHECKPOINT_SECONDS = 10.0
"""Seconds between two checks whether the server has all events; after an outage it gets them."""


class Labels(list[str]):
    """Tags of a task run that are shown and searchable, but hidden from iteration.

    For each tag that it iterates over, Prefect's engine would ask the server for a concurrency
    limit before the run. That takes 4 ms, and the run fails while the server is unavailable.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(())


@contextmanager
def events_kept() -> Iterator[None]:
    """Within the block, keep events that an unavailable server cannot take, and send them when it
    is back.

    Prefect's client keeps unconfirmed events. By default its ten tries per event take 8 s, block
    all other events, and delay the end of the process. Here there are two tries, and a check every
    ten seconds whether the server is back.
    """
    if emit_events_to_cloud() or get_current_settings().api.url is None:
        # Prefect's cloud, or a server that the engine starts for one flow, has another client;
        # neither becomes unavailable.
        yield
        return
    EventsWorker.set_client_override(
        PrefectEventsClient, reconnection_attempts=1, checkpoint_interval=CHECKPOINT_SECONDS
    )
    try:
        yield
    finally:
        EventsWorker.set_client_override(None)


def emit_state(task_run: TaskRun, before: State | None) -> None:
    """Send the server the state of a task run, and the one before (None: it is new)."""
    if task_run.state is not None:
        emit_task_run_state_change_event(
            task_run, initial_state=before, validated_state=task_run.state
        )


def silence_task_engine() -> None:
    """Keep the task engine's messages about itself out of the logs: states say the same."""
    logger = logging.getLogger("prefect.task_runs")
    if _is_of_users not in logger.filters:
        logger.addFilter(_is_of_users)


def reread_settings() -> None:
    """Make Prefect read its variables again, in case it was imported before they were set."""
    refresh_global_settings_context()
    setup_logging()


def next_times(clock: Mapping[str, Any], count: int) -> list[datetime]:
    """Return the next times of a schedule, as the server's scheduler computes them; fewer than
    `count` if there are no more.

    `clock`: arguments of one of Prefect's schedule classes. Raises pydantic's ValidationError if
    they are invalid.
    """
    from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

    kinds: dict[str, Any] = {"cron": CronSchedule, "rrule": RRuleSchedule}
    kind = next((kinds[key] for key in kinds if key in clock), IntervalSchedule)
    return list(asyncio.run(kind(**clock).get_dates(count, start=datetime.now(UTC))))


def server_app() -> FastAPI:
    """Return Prefect's server application."""
    from prefect.server.api.server import create_app

    # Not `final`: with FastAPI 0.137 and newer that only collects garbage (Prefect 3.9).
    return create_app()


def _is_of_users(record: logging.LogRecord) -> bool:
    return record.module != "task_engine" or (
        record.levelno >= logging.WARNING and not str(record.msg).startswith("Task run ")
    )
