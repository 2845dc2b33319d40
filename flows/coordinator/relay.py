"""Relay: a process on a node that sends its attempts' messages to the coordinator, many in a call.

It has no state and decides nothing. An attempt waits for its own answer, which comes once the
coordinator has given it; if the relay does not answer, the attempt sends its news again, directly
to the coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from regrow.infra.ray.cluster import start_actor
from regrow.infra.ray.notices import ignore_sigterm
from regrow.tasks.ports.messages import LogLine, Progress, Reply
from regrow.tasks.process import background

Lines = tuple[str, Sequence[LogLine]]
"""A task run, and the lines that its attempts printed."""
Send = Callable[[list[Progress], list[Lines]], Awaitable[list[Reply]]]
MOST_UNDER_WAY = 4
"""Batches that wait for answers, at most, so that a busy coordinator gets fewer and larger ones."""
BATCH_NUMBERS = 100_000
"""Most numbers in a batch, but for its last message: 10 MB in the coordinator."""
MOST_LINES = 5_000
"""Most printed lines that wait for the next batch; further ones are only in the state."""
WAITING = 1_000_000
"""Calls that may wait at a time, in a relay and in the coordinator: practically no limit, so that
no call waits for another one's answer. A waiting call takes 56 KB.
"""


class Relay:
    """Gathers messages, in one event loop. `send` delivers a batch; its answers are in order."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._news: list[tuple[Progress, asyncio.Future[Reply]]] = []
        self._lines: list[Lines] = []
        self._urgent = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._pace = 0.0
        self._sent = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    async def report(self, progress: Progress) -> Reply:
        """See Coordinator.report. Raises the error of its batch."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._news.append((progress, answer))
        self._urgent |= progress.urgent
        self._send_pending()
        return await answer

    async def show(self, task_run: str, lines: Sequence[LogLine]) -> None:
        """See Coordinator.show."""
        if sum(len(printed) for _, printed in self._lines) < MOST_LINES:
            self._lines.append((task_run, lines))
        self._send_pending()

    async def answers(self) -> None:
        """Confirm that the relay is alive, however long the coordinator takes."""

    def _send_pending(self) -> None:
        """Send what was gathered: urgent messages at once, others at the pace that was set."""
        if not (self._news or self._lines) or len(self._under_way) >= (
            MOST_UNDER_WAY if self._urgent else 1
        ):
            return
        loop = asyncio.get_running_loop()
        due = loop.time() if self._urgent else self._sent + self._pace
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due > loop.time():
            self._timer = loop.call_later(due - loop.time(), self._send_pending)
            return
        self._sent = loop.time()
        task = loop.create_task(self._deliver(self._batch(), self._lines))
        self._lines = []
        self._under_way.add(task)
        task.add_done_callback(self._delivered)

    def _batch(self) -> list[tuple[Progress, asyncio.Future[Reply]]]:
        """Remove and return the oldest messages, as many as fit in one call."""
        numbers = count = 0
        while count < len(self._news) and numbers < BATCH_NUMBERS:
            numbers += sum(1 + len(row.metrics) for row in self._news[count][0].rows)
            count += 1
        batch, self._news = self._news[:count], self._news[count:]
        self._urgent = any(progress.urgent for progress, _ in self._news)
        return batch

    async def _deliver(
        self, batch: list[tuple[Progress, asyncio.Future[Reply]]], lines: list[Lines]
    ) -> None:
        try:
            replies = await self._send([progress for progress, _ in batch], lines)
        except Exception as error:  # noqa: BLE001 - each attempt retries directly at the coordinator
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        self._pace = max((reply.pace for reply in replies), default=self._pace)
        for (_, answer), reply in zip(batch, replies, strict=True):
            if not answer.done():  # its caller may be gone
                answer.set_result(reply)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._send_pending()


class RayRelay(Relay):
    """Relay to a coordinator on Ray, under the name that the coordinator has chosen."""

    def __init__(self, coordinator: Any, name: str) -> None:
        ignore_sigterm()
        super().__init__(lambda news, lines: coordinator.report_all.remote(news, name, lines))
        self._coordinator, self._name = coordinator, name

    async def greet(self) -> None:
        """Register at the coordinator, which then directs the node's attempts here."""
        await self._coordinator.report_all.remote([], self._name)


class Relays:
    """Relays that this driver has started. They end with it."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._started: dict[str, Any] = {}
        self._ended = False

    def start(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Start relays on nodes, (ID, name), in a thread: a cluster may be slow to answer."""
        if wanted:
            background.start(self._start, wanted, name="relays")

    def _start(self, wanted: Sequence[tuple[str, str]]) -> None:
        for node_id, name in wanted:
            if self._ended or name in self._started:  # Ray itself restarts a relay on its node
                continue
            try:
                self._started[name] = start_relay(self._coordinator, node_id, name)
            except Exception as error:  # noqa: BLE001 - Ray has many errors; without a relay attempts call directly
                logging.getLogger(__name__).info(
                    "no relay could be started on node %s: %s", node_id, error
                )
        if self._ended:
            self.end()

    def end(self) -> None:
        """End all relays; attempts that still run call the coordinator directly."""
        self._ended = True
        while self._started:
            ray.kill(self._started.popitem()[1])


@contextmanager
def relays(coordinator: Any) -> Iterator[Relays]:
    """Yield the relays of a session, initially none, and end them after the block. If the block
    raises, as when the cluster is lost, they are left.
    """
    started = Relays(coordinator)
    yield started
    started.end()


def start_relay(coordinator: Any, node_id: str, name: str) -> Any:
    """Start a relay of this name. Ray restarts it; calls not answered by then fail at once."""
    where = {"name": name, "node_id": node_id}
    relay = start_actor(RayRelay, coordinator, name, waiting=WAITING, again=False, **where)
    relay.greet.remote()
    return relay
