"""Log lines of task runs, sent by a thread in batches; an unavailable server gets them later."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import LogCreate

from regrow.infra.machine.outage import is_outage
from regrow.infra.prefect.server import answers
from regrow.tasks.ports.messages import LogLine
from regrow.tasks.process import background

PERIOD_SECONDS = 2.0
"""Seconds between two batches: a request costs the server some 10 ms of CPU, whatever its size."""
MOST_AT_ONCE = 200
MOST_WAITING = 20_000
"""Most lines that wait for an unavailable server; beyond that the oldest are dropped."""
LAST_SECONDS = 5.0
"""Seconds that the end of the block waits for the thread to finish."""
T = TypeVar("T")


def is_away(error: httpx.HTTPError) -> bool:
    """Return whether Prefect's server is away or overloaded, and did not refuse."""
    if not isinstance(error, httpx.HTTPStatusError):
        return True
    return is_outage(error.response.status_code)


def deliver(
    client: SyncPrefectClient, waiting: deque[T], send: Callable[[list[T]], object]
) -> bool:
    """Send what waits, oldest first, MOST_AT_ONCE at a time. Return False if the server is
    unavailable: then what was not sent waits on. What the server refuses is dropped.
    """
    while waiting:
        if not answers(str(client.api_url), 0.0):
            return False
        batch = [waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(waiting)))]
        try:
            send(batch)
        except httpx.HTTPError as error:
            if is_away(error):
                waiting.extendleft(reversed(batch))
                return False
            logging.getLogger("regrow").info("Prefect refuses log lines: %s", error)
    return True


class RunLogs:
    """Collects lines and sends them. Thread-safe."""

    def __init__(self, client: SyncPrefectClient, flow_run_id: UUID) -> None:
        self._client, self._flow_run_id = client, flow_run_id
        self._waiting: deque[LogCreate] = deque(maxlen=MOST_WAITING)

    def say(self, task_run: str, text: str, *, level: int = logging.INFO) -> None:
        """Add a line from regrow about a task run."""
        self.add(task_run, LogLine(source="regrow", level=level, text=text, t=time.time()))

    def add(self, task_run: str, line: LogLine) -> None:
        """Add a line of a task run."""
        when = datetime.fromtimestamp(line.t, UTC)
        self._waiting.append(
            LogCreate(
                name=line.source,
                level=line.level,
                message=line.text,
                timestamp=when,  # type: ignore[arg-type]  # see telling
                flow_run_id=self._flow_run_id,
                task_run_id=UUID(task_run),
            )
        )

    @contextmanager
    def sent(self, more: Callable[[], Iterable[tuple[str, LogLine]]]) -> Iterator[None]:
        """Within the block, send lines, including those that `more` returns, every 2 s. At its end,
        wait up to 5 s for a batch under way, then send the rest.
        """
        send = partial(self._send, more)
        try:
            with background.every(
                PERIOD_SECONDS, send, name="run-logs", wait=LAST_SECONDS
            ) as thread:
                yield
        finally:
            if not thread.is_alive():
                send()

    def _send(self, more: Callable[[], Iterable[tuple[str, LogLine]]]) -> None:
        try:
            for task_run, line in more():
                self.add(task_run, line)
        # The cluster may be lost. Lines for display are no reason to end an experiment.
        except Exception:
            logging.getLogger("regrow").info("lines for Prefect were lost", exc_info=True)
        deliver(self._client, self._waiting, self._client.create_logs)
