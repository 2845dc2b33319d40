"""A relay: one process of a node that speaks to the coordinator for the attempts of that node, many in one call.

It knows nothing, decides nothing and keeps nothing: an attempt waits for its own answer, which comes when the coordinator has
given it, and sends its news again, to the coordinator itself, where the relay does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from regrow.tasks.messages import LogLine, Progress, Reply

Lines = tuple[str, Sequence[LogLine]]
"""A task run, and what its attempts print."""
Send = Callable[[list[Progress], list[Lines]], Awaitable[list[Reply]]]
MOST_UNDER_WAY = 4
"""Batches that wait for their answers, so that a coordinator with too much to do gets fewer and larger ones."""
BATCH_NUMBERS = 100_000
"""A batch has so many numbers or a message more: about 10 MB in the coordinator while it takes them in."""
MOST_LINES = 5_000
"""Lines that wait for the next batch; beyond, they are let go. All of them are in the state."""
WAITING = 1_000_000
"""Calls that may wait at a time, in a relay and in the coordinator, so that none waits for another's answer: no limit. One that
waits takes 56 KB."""


class Relay:
    """Gathers messages. Async: everything happens in one event loop. `send` delivers a batch, and answers in its order."""

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
        """See Coordinator.report. Raises what the batch raised in which it was sent."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._news.append((progress, answer))
        self._urgent |= progress.urgent
        self._go_on()
        return await answer

    async def show(self, task_run: str, lines: Sequence[LogLine]) -> None:
        """See Coordinator.show."""
        if sum(len(printed) for _, printed in self._lines) < MOST_LINES:
            self._lines.append((task_run, lines))
        self._go_on()

    async def answers(self) -> None:
        """Whether it is there, however long the coordinator may take."""

    def _go_on(self) -> None:
        """Sends what has gathered as soon as it may: urgent news at once, others after the pace that the coordinator has set."""
        if not (self._news or self._lines) or len(self._under_way) >= (MOST_UNDER_WAY if self._urgent else 1):
            return
        loop = asyncio.get_running_loop()
        due = loop.time() if self._urgent else self._sent + self._pace
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due > loop.time():
            self._timer = loop.call_later(due - loop.time(), self._go_on)
            return
        self._sent = loop.time()
        task = loop.create_task(self._deliver(self._batch(), self._lines))
        self._lines = []
        self._under_way.add(task)
        task.add_done_callback(self._delivered)

    def _batch(self) -> list[tuple[Progress, asyncio.Future[Reply]]]:
        """The oldest messages, as many as one call holds."""
        numbers = count = 0
        while count < len(self._news) and numbers < BATCH_NUMBERS:
            numbers += sum(1 + len(row.metrics) for row in self._news[count][0].rows)
            count += 1
        batch, self._news = self._news[:count], self._news[count:]
        self._urgent = any(progress.urgent for progress, _ in self._news)
        return batch

    async def _deliver(self, batch: list[tuple[Progress, asyncio.Future[Reply]]], lines: list[Lines]) -> None:
        try:
            replies = await self._send([progress for progress, _ in batch], lines)
        except Exception as error:  # noqa: BLE001 - each of them will ask the coordinator itself
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
        self._go_on()


class RayRelay(Relay):
    """One that speaks to a coordinator on Ray, under a name that the coordinator has given it."""

    def __init__(self, coordinator: Any, name: str) -> None:
        super().__init__(lambda news, lines: coordinator.report_all.remote(news, name, lines))
        self._coordinator, self._name = coordinator, name

    async def greet(self) -> None:
        """Has the coordinator send the node's attempts here."""
        await self._coordinator.report_all.remote([], self._name)


class Relays:
    """Those that this driver has started. They die with it."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._started: dict[str, Any] = {}
        self._ended = False

    def start(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Starts one on each of these nodes, by (id, name), in the background: a cluster may be slow to answer."""
        if wanted:
            threading.Thread(target=self._start, args=(wanted,), name="regrow-relays", daemon=True).start()

    def _start(self, wanted: Sequence[tuple[str, str]]) -> None:
        for node_id, name in wanted:
            if self._ended or name in self._started:  # Ray restarts it where it was
                continue
            try:
                self._started[name] = start_relay(self._coordinator, node_id, name)
            except Exception as error:  # noqa: BLE001 - Ray's own errors are many; without a relay attempts speak for themselves
                logging.getLogger(__name__).info("no relay could be started on node %s: %s", node_id, error)
        if self._ended:
            self.end()

    def end(self) -> None:
        """Ends all of them; attempts that still run speak for themselves."""
        self._ended = True
        while self._started:
            ray.kill(self._started.popitem()[1])


@contextmanager
def relays(coordinator: Any) -> Iterator[Relays]:
    """Those of a session, none to begin with; they end with the block, but for a lost cluster's."""
    started = Relays(coordinator)
    yield started
    started.end()


def start_relay(coordinator: Any, node_id: str, name: str) -> Any:
    """The actor, which may be found by its name. It comes back by itself; a call that it had not answered fails at once."""
    actor: Any = ray.remote(RayRelay)
    relay = actor.options(
        name=name, num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=WAITING,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
    ).remote(coordinator, name)
    relay.greet.remote()
    return relay
