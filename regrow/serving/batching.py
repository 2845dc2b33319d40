"""Inputs of many requests in one call of the model: who waits for whom, and for how long. What is computed is not known here."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Result = bytes | BaseException
"""An output as JSON, or what was raised for it."""


class Overloaded(Exception):
    """So many inputs wait that another one would wait too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """See Served: `most` inputs of a call, `wait` seconds, `waiting` inputs that wait at most."""

    most: int
    wait: float
    waiting: int


class Batcher:
    """Gathers inputs and hands them to `run`, in `thread` (None: one of its own), one batch at a time.

    A batch goes once it is full, or once as many inputs are there as have lately been asked for at a time, or when its first one
    has waited long enough. So a single client never waits for others that do not come: with a plain wait of 5 ms its
    requests would take 5 ms longer.
    """

    def __init__(
        self, run: Callable[[list[Any]], Sequence[Result]], limits: Limits, thread: ThreadPoolExecutor | None = None
    ) -> None:
        self._run, self._limits = run, limits
        self._waiting: deque[tuple[float, Any, asyncio.Future[Result]]] = deque()
        self._open = 0
        """Inputs that wait or are computed."""
        self._peak = 0
        """The most that were open at a time since the last batch went."""
        self._came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = thread or ThreadPoolExecutor(1)
        self._pump = asyncio.create_task(self._batches())

    async def ask(self, inputs: Sequence[Any]) -> list[Result]:
        """The result for each input, in order. Raises Overloaded, computing nothing."""
        if self._open + len(inputs) > self._limits.waiting and self._open:
            raise Overloaded
        loop, now = asyncio.get_running_loop(), time.monotonic()
        made = [(now, each, loop.create_future()) for each in inputs]
        self._waiting.extend(made)
        self._open += len(made)
        self._peak = max(self._peak, self._open)
        self._came.set()
        self._idle.clear()
        try:
            return [await future for _, _, future in made]
        finally:
            self._open -= len(made)
            if not self._open:
                self._idle.set()

    async def close(self) -> None:
        """Ends it once everything that was asked is answered."""
        await self._idle.wait()
        self._pump.cancel()
        self._thread.shutdown(wait=False)

    async def _batches(self) -> None:
        loop, expected = asyncio.get_running_loop(), 1
        while True:
            await self._gather(min(self._limits.most, expected))
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.most))]
            inputs = [each for _, each, _ in batch]
            expected, self._peak = self._peak, self._open
            results = await loop.run_in_executor(self._thread, self._safely, inputs)
            for (_, _, future), result in zip(batch, results, strict=True):
                if not future.done():  # its request may have been given up
                    future.set_result(result)
            expected = max(expected, self._peak)

    async def _gather(self, wanted: int) -> None:
        """Returns once there is a batch to go."""
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        until = self._waiting[0][0] + self._limits.wait
        while len(self._waiting) < wanted and (left := until - time.monotonic()) > 0:
            self._came.clear()
            try:
                async with asyncio.timeout(left):
                    await self._came.wait()
            except TimeoutError:
                return

    def _safely(self, inputs: list[Any]) -> Sequence[Result]:
        try:
            return self._run(inputs)
        except BaseException as error:  # noqa: BLE001 - of this batch only: the next one is computed all the same
            return [error] * len(inputs)
