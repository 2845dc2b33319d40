"""Batching: combines inputs of many requests, whatever they are, in one call of the model."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

HUNG_SECONDS = 1.0
"""Seconds in which the requests of a call that hangs are answered."""
Result = bytes | BaseException
"""An output as JSON, or the exception that was raised for it."""


class Overloaded(Exception):
    """Too many inputs wait: another one would wait too long."""


class Hung(Exception):
    """The call of the model has not returned in time, and none follows in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """See Served: `most` inputs a call, `wait` seconds, at most `waiting` inputs that wait, at most
    `seconds` a call.
    """

    most: int
    wait: float
    waiting: int
    seconds: float


class Batcher:
    """Collects inputs and passes them to `run`, one batch at a time, in `thread` (None: its own
    thread).

    A batch starts once it is full, once it has as many inputs as were recently open at the same
    time, or when its first input has waited for the limit. A single client thus never waits for
    other clients that do not come: with a plain wait of 5 ms its requests would take 5 ms longer.
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Sequence[Result]],
        limits: Limits,
        thread: ThreadPoolExecutor | None = None,
        on_hang: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_hang`: called when a call has not returned in time, once its inputs are answered."""
        self._run, self._limits, self._on_hang = run, limits, on_hang
        self._hangs = False
        self._waiting: deque[tuple[float, Any, asyncio.Future[Result]]] = deque()
        self._open = 0
        """Number of inputs that wait or are computed."""
        self._peak = 0
        """Maximum of `_open` since the last batch started."""
        self._came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = thread or ThreadPoolExecutor(1)
        self._pump = asyncio.create_task(self._batches())

    async def ask(self, inputs: Sequence[Any]) -> list[Result]:
        """Return each input's result, in order; Hung for each that no call will answer any more.
        Raises Overloaded without computing anything.
        """
        if self._hangs:
            return [Hung()] * len(inputs)
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
        """Close it once all inputs are answered."""
        await self._idle.wait()
        self._pump.cancel()
        self._thread.shutdown(wait=False)

    async def _batches(self) -> None:
        loop, expected = asyncio.get_running_loop(), 1
        while True:
            await self._gather(min(self._limits.most, expected))
            batch = [
                self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.most))
            ]
            inputs = [each for _, each, _ in batch]
            expected, self._peak = self._peak, self._open
            try:
                async with asyncio.timeout(self._limits.seconds):
                    results = await loop.run_in_executor(self._thread, self._safely, inputs)
            except TimeoutError:
                self._hangs = True
                for _, _, future in (*batch, *self._waiting):
                    if not future.done():
                        future.set_result(Hung())
                loop.call_later(HUNG_SECONDS, self._on_hang)
                return
            for (_, _, future), result in zip(batch, results, strict=True):
                if not future.done():  # its request may have been cancelled
                    future.set_result(result)
            expected = max(expected, self._peak)

    async def _gather(self, wanted: int) -> None:
        """Return once a batch is due."""
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
        except BaseException as error:  # noqa: BLE001 - concerns this batch only: the next one is computed
            return [error] * len(inputs)
