"""What user code logs during a trial, carried to the Prefect server as the logs of its task run.

`captured_logs` takes in the records of any logger, and lines that were printed; `LogShipper` sends them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prefect.context import TaskRunContext
from prefect.logging.handlers import APILogHandler, set_api_log_sink
from prefect.settings import PREFECT_LOGGING_TO_API_BATCH_INTERVAL, PREFECT_LOGGING_TO_API_BATCH_SIZE

from regrow.tasks.forking import renewed

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
        self.setFormatter(logging.Formatter("%(message)s"))

    def renew(self) -> None:
        """A forked child (a data loader's) has no thread that would send."""
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if _is_carriers(record.name):
            return
        record.flow_run_id, record.task_run_id = self._ids
        super().emit(record)

    def flush(self) -> None:
        """Do nothing: closing a handler must not stop Prefect's log worker."""


def _is_carriers(name: str) -> bool:
    return name.partition(".")[0] in _CARRIERS


Say = Callable[[str, str, float], None]
"""Given where a line comes from, the line, and when it came (seconds since the epoch)."""


@contextmanager
def captured_logs(level: int = logging.INFO) -> Iterator[Say]:
    """Inside a task run, send what any logger logs at `level` or above to the server as logs of that run.

    Sends nothing outside a task run. The root logger's level is lowered to `level` meanwhile. What is yielded sends a line that
    was printed.
    """
    context = TaskRunContext.get()
    handler: _RunLogHandler | None = None
    if context is not None and context.task_run.flow_run_id is not None:
        handler = _RunLogHandler(context.task_run.flow_run_id, context.task_run.id, level)

    def say(source: str, text: str, t: float) -> None:
        if handler is not None and (clean := text.replace("\0", "").rstrip()):  # PostgreSQL refuses NUL, and with it all others
            record = logging.LogRecord(source, logging.INFO, "", 0, clean, None, None)
            record.created = t
            handler.handle(record)

    if handler is None:
        yield say
    else:
        with _listening(handler, level):
            yield say


@contextmanager
def told_records(tell: Callable[[logging.LogRecord, str], None], level: int = logging.INFO) -> Iterator[None]:
    """Within the block, `tell` is given each record that any logger logs at `level` or above, and its text with tracebacks."""
    with _listening(handler := _TellingHandler(tell, level), level):
        # Those of a Prefect run stay below its own loggers.
        runs = logging.getLogger("prefect.task_runs")
        runs.addHandler(handler)
        try:
            yield
        finally:
            runs.removeHandler(handler)


class _TellingHandler(logging.Handler):
    """Gives records away as they come."""

    def __init__(self, tell: Callable[[logging.LogRecord, str], None], level: int) -> None:
        super().__init__(level)
        self._tell = tell
        self.setFormatter(logging.Formatter("%(message)s"))

    def renew(self) -> None:
        """A forked child has nobody to tell: what the user's own handlers do not take goes to stderr, which its parent reads."""
        self._tell = self._print

    def _print(self, record: logging.LogRecord, text: str) -> None:
        if not any(handler.level <= record.levelno for handler in logging.getLogger().handlers if handler is not self):
            sys.stderr.write(f"{record.levelname} {record.name}: {text}\n")

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_carriers(record.name) or record.name.startswith("prefect.task_runs"):
            try:
                self._tell(record, self.format(record))
            except Exception:  # noqa: BLE001 - as every handler has it: a message that does not fit its arguments
                self.handleError(record)


def is_taken(record: logging.LogRecord, level: int = logging.INFO) -> bool:
    """Whether a record comes to the root logger's handlers, and so to those above, unless somebody has removed them."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger.parent is not None:
        if not logger.propagate:
            return False
        logger = logger.parent
    there = any(isinstance(handler, _TellingHandler) for handler in logging.getLogger().handlers)
    return there and record.levelno >= level and not _is_carriers(record.name)


@contextmanager
def _listening(handler: _RunLogHandler | _TellingHandler, level: int) -> Iterator[None]:
    renewed(handler)
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
        self._pid = os.getpid()
        threading.Thread(target=self._run, name="log-shipper", daemon=True).start()
        set_api_log_sink(self.add)

    def add(self, log: dict[str, Any]) -> None:
        """Take one log in Prefect's form; sent within Prefect's interval for logs (2 s), but for those of a forked child."""
        if os.getpid() != self._pid:
            return
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
