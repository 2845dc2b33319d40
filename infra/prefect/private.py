"""What of Prefect's engines, events, settings and server is used that its documentation does not promise.

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

__all__ = [
    "Labels", "emit_state", "events_kept", "make_database", "next_times", "no_small_talk", "reread_settings", "run_flow",
    "run_task_async", "server_app",
]

CHECKPOINT_SECONDS = 10.0
"""Between two questions to the server whether it has all events; also how late it hears of them after it was away."""


class Labels(list[str]):
    """Tags of a task run that are shown and can be searched for. Whoever iterates finds none.

    Prefect's engine would ask the server for a concurrency limit of each tag before the run, which takes 4 ms, and the run
    fails while the server is away.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(())


@contextmanager
def events_kept() -> Iterator[None]:
    """Within the block, events that a server which is away cannot take are kept, and sent when it is back.

    Prefect's client keeps what was not confirmed. Its ten tries for each event take 8 s, during which all others wait, and the
    process does not end before; here there are two, and a look every ten seconds whether the server is back.
    """
    if emit_events_to_cloud() or get_current_settings().api.url is None:
        yield  # for Prefect's cloud, or a server that its engine starts for one flow, its client is another one; neither is away
        return
    EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=1, checkpoint_interval=CHECKPOINT_SECONDS)
    try:
        yield
    finally:
        EventsWorker.set_client_override(None)


def emit_state(task_run: TaskRun, before: State | None) -> None:
    """Tell the server the state that a task run is in by now, and which it was in before (None: it is new)."""
    if task_run.state is not None:
        emit_task_run_state_change_event(task_run, initial_state=before, validated_state=task_run.state)


def no_small_talk() -> None:
    """Leave out of the server's logs what Prefect's task engine says of itself, a request a line: the states tell the same."""
    logger = logging.getLogger("prefect.task_runs")
    if _not_small_talk not in logger.filters:
        logger.addFilter(_not_small_talk)


def reread_settings() -> None:
    """Make Prefect read its variables again, in case it was imported before they were set."""
    refresh_global_settings_context()
    setup_logging()


def next_times(clock: Mapping[str, Any], count: int) -> list[datetime]:
    """The next times of a schedule, as the server's scheduler will have them; fewer where there are no more.

    `clock`: what one of Prefect's classes of schedules is made of. Raises pydantic's ValidationError for what is none.
    """
    from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

    now, given = datetime.now(UTC), dict(clock)
    if "cron" in clock:
        return list(asyncio.run(CronSchedule(**given).get_dates(count, start=now)))
    if "rrule" in clock:
        return list(asyncio.run(RRuleSchedule(**given).get_dates(count, start=now)))
    return list(asyncio.run(IntervalSchedule(**given).get_dates(count, start=now)))


def server_app() -> FastAPI:
    """Prefect's server, to be served once, by this process."""
    from prefect.server.api.server import create_app

    return create_app(final=True)


async def make_database() -> None:
    """Run all migrations of the installed Prefect on the database of its settings, and register its block types."""
    from prefect.server.database import provide_database_interface
    from prefect.server.models.block_registration import run_block_auto_registration

    db = provide_database_interface()
    await db.create_db()
    async with db.session_context() as session:
        await run_block_auto_registration(session=session)
        await session.commit()
    await (await db.engine()).dispose()


def _not_small_talk(record: logging.LogRecord) -> bool:
    return record.module != "task_engine" or (record.levelno >= logging.WARNING and not str(record.msg).startswith("Task run "))
