"""What user code logs during a trial, carried to the Prefect server as the logs of its task run.

`captured_logs` takes in the records of any logger; `LogShipper` sends them. Nothing
else of a trial lives here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prefect.context import TaskRunContext
from prefect.logging.handlers import APILogHandler, set_api_log_sink
from prefect.settings import PREFECT_LOGGING_TO_API_BATCH_INTERVAL, PREFECT_LOGGING_TO_API_BATCH_SIZE

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# What carries the logs must not log into them; Prefect's own run loggers reach the server by themselves.
_CARRIERS = (
    "prefect",
    "httpx",
    "httpcore",
    "websockets",
    "urllib3",
    "asyncio",
    "ray",
    "grpc",
    "anyio",
    "aiohttp",
)


class _RunLogHandler(APILogHandler):
    """Sends every record as one of the given run's, from whatever thread it comes."""

    def __init__(self, flow_run_id: Any, task_run_id: Any, level: int) -> None:
        super().__init__(level)
        self._ids = (flow_run_id, task_run_id)
        self._pid = os.getpid()
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in _CARRIERS or os.getpid() != self._pid:
            return  # a forked child (a data loader's) has no thread that would send
        record.flow_run_id, record.task_run_id = self._ids
        super().emit(record)

    def flush(self) -> None:
        """Do nothing: closing a handler must not stop Prefect's log worker."""


@contextmanager
def captured_logs(level: int = logging.INFO) -> Iterator[None]:
    """Inside a task run, send what any logger logs at `level` or above to the server as logs of that run.

    Does nothing outside a task run. The root logger's level is lowered to `level` meanwhile.
    """
    context = TaskRunContext.get()
    if context is None or context.task_run.flow_run_id is None:
        yield
        return
    handler = _RunLogHandler(context.task_run.flow_run_id, context.task_run.id, level)
    root = logging.getLogger()
    before = root.level
    lowered = min(before, level) if before else level
    root.setLevel(lowered)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        if root.level == lowered:  # else the user's code has set it meanwhile
            root.setLevel(before)


class LogShipper:
    """Sends logs in batches over a client that is there already.

    Prefect's own worker can only be emptied by ending it, and a new one opens a new client: 60 ms after a
    trial.
    """

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._waiting: list[tuple[dict[str, Any], int]] = []
        self._undelivered = 0
        self._urgent = False
        threading.Thread(target=self._run, name="log-shipper", daemon=True).start()
        set_api_log_sink(self.add)

    def add(self, log: dict[str, Any]) -> None:
        """Take one log in Prefect's form; sent within Prefect's interval for logs (2 s)."""
        with self._changed:
            self._waiting.append((log, log.pop("__payload_size__", 0)))
            self._undelivered += 1
            self._changed.notify_all()

    def deliver(self, seconds: float = 5.0) -> bool:
        """Return when the server has all logs; False if that takes longer than `seconds`."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._undelivered, timeout=seconds)

    def close(self) -> None:
        """Deliver what there is and leave Prefect's logs to Prefect again."""
        set_api_log_sink(None)
        self.deliver()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._changed.wait_for(lambda: self._urgent, timeout=PREFECT_LOGGING_TO_API_BATCH_INTERVAL.value())
                batch = self._take()
                self._urgent = self._urgent and bool(self._waiting)
            try:
                self._client.create_logs(batch)
            except Exception:  # a server that is away costs the logs, never the trial
                logging.getLogger("prefect.regrow").warning("%d logs were lost", len(batch), exc_info=True)
            with self._changed:
                self._undelivered -= len(batch)
                self._changed.notify_all()

    def _take(self) -> list[dict[str, Any]]:
        room = PREFECT_LOGGING_TO_API_BATCH_SIZE.value()
        count = 0
        for _, size in self._waiting:
            if count and size > room:
                break
            room -= size
            count += 1
        batch = [log for log, _ in self._waiting[:count]]
        del self._waiting[:count]
        return batch
