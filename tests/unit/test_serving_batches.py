"""Inputs of many requests in one call: how many, for how long one waits, and whose fault an error
is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from regrow.apps.serving.batching import Batcher, Hung, Limits, Overloaded, Result


class Calls:
    """A model that takes a while, and remembers what it was called with."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()
        self.seconds = seconds

    def __call__(self, inputs: list[Any]) -> Sequence[Result]:
        self.batches.append(list(inputs))
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        return [str(each).encode() for each in inputs]


def batched(
    run: Callable[[list[Any]], Sequence[Result]],
    what: Callable[[Batcher], Coroutine[Any, Any, Any]],
    **limits: Any,
) -> Any:
    async def whole() -> Any:
        batcher = Batcher(
            run, Limits(**{"most": 16, "wait": 0.005, "waiting": 100, "seconds": 9.0, **limits})
        )
        found = await what(batcher)
        await asyncio.wait_for(batcher.close(), 5)
        return found

    return asyncio.run(whole())


def test_each_gets_its_own_result_and_lists_stay_in_order() -> None:
    async def ask(batcher: Batcher) -> list[list[Result]]:
        return list(
            await asyncio.gather(*(batcher.ask(range(10 * n, 10 * n + n)) for n in range(8)))
        )

    assert batched(Calls(), ask) == [[str(10 * n + k).encode() for k in range(n)] for n in range(8)]


def test_those_who_wait_for_a_call_that_hangs_are_told_and_its_process_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("regrow.apps.serving.batching.HUNG_SECONDS", 0.0)
    hangs, left = threading.Event(), threading.Event()

    def run(inputs: list[Any]) -> Sequence[Result]:
        if inputs != [1]:
            hangs.wait(60)
        return [b"1"] * len(inputs)

    async def whole() -> list[list[Result]]:
        limits = Limits(most=2, wait=0.0, waiting=100, seconds=0.2)
        batcher = Batcher(run, limits, on_hang=left.set)
        found = [await batcher.ask([1])]
        found += await asyncio.gather(*(batcher.ask([n]) for n in (2, 3, 4, 5, 6)))
        found += [await batcher.ask([1])]
        await asyncio.wait_for(batcher.close(), 5)
        return found

    first, *others = asyncio.run(whole())
    hangs.set()
    assert first == [b"1"]
    assert {type(result) for [result] in others} == {Hung}
    assert left.is_set()


def test_a_batch_is_at_most_so_large_and_one_thread_computes() -> None:
    calls = Calls()

    async def ask(batcher: Batcher) -> None:
        await asyncio.gather(*(batcher.ask([n]) for n in range(50)))

    batched(calls, ask)
    assert max(map(len, calls.batches)) == 16
    assert sum(map(len, calls.batches)) == 50
    assert len(calls.threads) == 1


def test_who_ask_together_are_computed_together() -> None:
    calls = Calls()

    async def client(batcher: Batcher) -> None:
        for n in range(20):
            await batcher.ask([n])

    async def ask(batcher: Batcher) -> None:
        await asyncio.gather(*(client(batcher) for _ in range(8)))

    batched(calls, ask, wait=0.2)
    assert len(calls.batches) <= 25, "eight clients, twenty rounds"


def test_a_single_client_waits_for_nobody() -> None:
    calls = Calls(seconds=0.0)

    async def ask(batcher: Batcher) -> float:
        began = time.monotonic()
        for n in range(50):
            await batcher.ask([n])
        return time.monotonic() - began

    assert batched(calls, ask, wait=2) < 50, "half of what 50 requests that wait would take"


def test_nobody_waits_longer_than_is_said_for_those_who_do_not_come() -> None:
    async def ask(batcher: Batcher) -> float:
        await asyncio.gather(*(batcher.ask([n]) for n in range(8)))  # eight have been asking
        began = time.monotonic()
        await batcher.ask([1])
        return time.monotonic() - began

    took = batched(Calls(seconds=0.0), ask, wait=0.1)
    assert took > 0.05


def test_what_is_too_much_is_refused_at_once_and_computes_nothing() -> None:
    calls = Calls(seconds=0.05)

    async def ask(batcher: Batcher) -> None:
        first = asyncio.create_task(batcher.ask(range(30)))
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded):
            await batcher.ask(range(100, 111))
        assert len(await first) == 30

    batched(calls, ask, waiting=40)
    assert sum(map(len, calls.batches)) == 30


def test_a_list_that_is_longer_than_what_may_wait_is_computed_where_nobody_else_waits() -> None:
    assert len(batched(Calls(0.0), lambda batcher: batcher.ask(range(30)), waiting=10)) == 30


def test_an_error_is_each_inputs_result_and_the_next_batch_is_computed() -> None:
    def run(inputs: list[Any]) -> Sequence[Result]:
        if "bad" in inputs:
            raise SystemExit(3)
        return [b"good"] * len(inputs)

    async def ask(batcher: Batcher) -> list[Result]:
        return [*await batcher.ask(["bad"]), *await batcher.ask(["x"])]

    error, good = batched(run, ask)
    assert isinstance(error, SystemExit)
    assert good == b"good"


def test_a_request_that_is_given_up_harms_no_other() -> None:
    async def ask(batcher: Batcher) -> list[Result]:
        given_up = asyncio.create_task(batcher.ask([1, 2]))
        other = asyncio.create_task(batcher.ask([3]))
        await asyncio.sleep(0.005)
        given_up.cancel()
        return await other

    assert batched(Calls(0.02), ask) == [b"3"]


def test_closing_waits_for_what_was_asked() -> None:
    async def whole() -> list[Result]:
        batcher = Batcher(Calls(0.05), Limits(most=4, wait=0.0, waiting=100, seconds=9.0))
        asked = asyncio.create_task(batcher.ask(range(10)))
        await asyncio.sleep(0)
        await batcher.close()
        assert asked.done()
        return asked.result()

    assert asyncio.run(whole()) == [str(n).encode() for n in range(10)]
