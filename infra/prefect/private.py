"""What of Prefect's engine and events is used that its documentation does not promise.

How a flow run is begun (`regrow/launch.py`) and the server (`infra/prefect/process.py`) use names of their own.

Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.client.schemas.objects import State, TaskRun
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker, emit_events_to_cloud
from prefect.task_engine import run_task_async
from prefect.utilities.engine import emit_task_run_state_change_event

__all__ = ["Labels", "emit_state", "events_kept", "no_small_talk", "run_task_async"]

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
    if emit_events_to_cloud():  # a client of another kind, for a server that is not away
        yield
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


def _not_small_talk(record: logging.LogRecord) -> bool:
    return record.module != "task_engine" or (record.levelno >= logging.WARNING and not str(record.msg).startswith("Task run "))
