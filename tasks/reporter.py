"""Carries an attempt's news to the coordinator: buffered while training goes on, at once where a decision is due.

A report costs a list append; a thread sends what has gathered a few times a second, which also renews the lease.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from regrow.search.events import Ended, Row, Saved
from regrow.tasks.messages import Arrival, Assignment, Desk, DeskGone, Order, Progress, Reason

FLUSH_SECONDS = 0.25
"""Between two messages while there is news: how far a live view lags behind."""
LEASE_SECONDS = 1.0
"""Between two messages without news: how soon an attempt learns that it is to end."""
_WEIGHT: dict[Reason, int] = {"": 0, "paused": 1, "preempted": 1, "stopped": 2, "fenced": 3}
"""An order to end is only replaced by a weightier one."""
MOST_ROWS = 20_000
"""Rows held back at most while the coordinator is away; then `add` waits. About 10 MB."""


class Reporter:
    """The one place from which an attempt talks. Thread-safe; messages are sent one at a time, in order."""

    def __init__(
        self, desk: Desk, assignment: Assignment, arrival: Arrival | None, saved: Callable[[], list[Saved]]
    ) -> None:
        """`arrival` None: the attempt could not even begin."""
        self._desk, self._lease = desk, assignment
        self._arrival = arrival
        self._saved = saved
        self._rows: deque[Row] = deque()
        self._doomed = ""
        self._sending = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.order = Order(until=assignment.until)
        self.on_drop: Callable[[tuple[str, ...], tuple[str, ...]], None] | None = None
        """Called with (drop, keep) when checkpoints are to be deleted."""

    def start(self) -> None:
        """Begins to send in the background."""
        self._thread = threading.Thread(target=self._run, name="regrow-reporter", daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Takes a row; it is sent with the next message."""
        self._rows.append(row)
        if len(self._rows) >= MOST_ROWS:
            self.flush()

    def notice(self, why: str, node: bool) -> None:
        """The process, or the whole node (`node`), is about to go away: the attempt is to save a checkpoint and end."""
        self._obey(Order(reason="preempted", why=why))
        if node:
            self._doomed = why  # said with every message from now on: the coordinator may be a new one by then
        self.hurry()

    def _obey(self, order: Order) -> None:
        if self.order.reason == "" or _WEIGHT[order.reason] > _WEIGHT[self.order.reason]:
            self.order = order

    def flush(self, *, ended: Ended | None = None, carry_on: bool = False) -> Order:
        """Sends all news and waits for the answer, which becomes `order`. Sends nothing once the lease is gone."""
        with self._sending:
            if self.order.reason == "fenced":
                self._rows.clear()
                return self.order
            arrival, self._arrival = self._arrival, None
            # Checkpoints first: a row is added before its checkpoint is asked for, so the rows taken next include it.
            saved = tuple(self._saved())
            # Taken one by one, so that none is lost that is added meanwhile.
            rows = tuple(self._rows.popleft() for _ in range(len(self._rows)))
            news = Progress(
                trial=self._lease.trial,
                attempt=self._lease.attempt,
                began=arrival,
                rows=rows,
                saved=saved,
                ended=ended,
                carry_on=carry_on,
                doomed=self._doomed,
            )
            try:
                order = self._desk.tell(news)
            except DeskGone as error:
                order = Order(reason="fenced", why=str(error))
            self._obey(order)
        if order.drop and self.on_drop is not None:
            self.on_drop(order.drop, order.keep)
        return order

    def hurry(self) -> None:
        """Sends what there is now: a checkpoint that is not in the log yet is of no use to the next attempt."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the background sending; what has gathered is sent by the next `flush`."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            hurried = self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            if self._stop.is_set():
                return
            if hurried or self._rows or time.monotonic() - last >= LEASE_SECONDS:
                self.flush()
                last = time.monotonic()
