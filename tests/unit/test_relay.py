"""A relay gathers what the attempts of a node say: each gets its own answer, and nobody waits who
need not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from regrow.flows.coordinator import relay as relaying
from regrow.flows.coordinator.relay import Lines, Relay
from regrow.search.events import Row
from regrow.tasks.ports.messages import LogLine, Progress, Reply


class Desk:
    """The coordinator's end: notes each batch, and answers when told to, with the number of the
    trial as `until`.
    """

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.lines: list[Lines] = []
        self.answers: list[asyncio.Future[None]] = []
        self.pace = 0.0

    async def send(self, news: list[Progress], lines: list[Lines]) -> list[Reply]:
        self.batches.append([progress.trial for progress in news])
        self.lines += lines
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]
        return [Reply(until=progress.trial, pace=self.pace) for progress in news]


def news(trial: int, *, urgent: bool = False, numbers: int = 0) -> Progress:
    rows = (Row(1, 0.0, dict.fromkeys(map(str, range(numbers)), 1.0)),) if numbers else ()
    return Progress(trial=trial, attempt=1, urgent=urgent, rows=rows)


def scene(play: Callable[[Relay, Desk], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        desk = Desk()
        await play(Relay(desk.send), desk)

    asyncio.run(asyncio.wait_for(played(), 20))


async def said(relay: Relay, *messages: Progress) -> Sequence[asyncio.Task[Reply]]:
    """All of them have been handed in, and what is to be sent at once was."""
    tasks = [asyncio.create_task(relay.report(message)) for message in messages]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_what_comes_while_an_answer_is_awaited_goes_in_one_call_and_each_gets_its_own_answer() -> (
    None
):
    async def play(relay: Relay, desk: Desk) -> None:
        first = await said(relay, news(0))
        others = await said(relay, news(1), news(2), news(3))
        assert desk.batches == [[0]]
        desk.answers[0].set_result(None)
        assert (await first[0]).until == 0
        await said(relay)
        assert desk.batches == [[0], [1, 2, 3]]
        assert not any(task.done() for task in others), (
            "nobody is answered before the coordinator has answered"
        )
        desk.answers[1].set_result(None)
        assert [(await task).until for task in others] == [1, 2, 3]

    scene(play)


def test_news_for_which_somebody_waits_go_at_once_and_take_the_others_along() -> None:
    async def play(relay: Relay, desk: Desk) -> None:
        desk.pace = 3600.0
        await said(relay, news(0))
        desk.answers[0].set_result(None)
        await said(relay, news(1), news(2))
        assert desk.batches == [[0]], "they wait for the pace that the coordinator has set"
        await said(relay, news(3, urgent=True))
        assert desk.batches == [[0], [1, 2, 3]]
        await said(relay, news(4, urgent=True))
        assert desk.batches[-1] == [4]

    scene(play)


def test_a_coordinator_that_does_not_keep_up_gets_fewer_and_larger_calls() -> None:
    async def play(relay: Relay, desk: Desk) -> None:
        for trial in range(50):
            await said(relay, news(trial, urgent=True))
        assert len(desk.batches) == relaying.MOST_UNDER_WAY
        desk.answers[0].set_result(None)
        await said(relay)
        assert desk.batches[-1] == list(range(relaying.MOST_UNDER_WAY, 50))

    scene(play)


def test_a_call_is_bounded_by_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "BATCH_NUMBERS", 10)

    async def play(relay: Relay, desk: Desk) -> None:
        await said(relay, news(0))
        await said(relay, *(news(trial, numbers=5) for trial in range(1, 6)))
        for _ in range(3):
            desk.answers[-1].set_result(None)
            await said(relay)
        assert desk.batches == [[0], [1, 2], [3, 4], [5]]

    scene(play)


def test_what_a_call_raises_each_of_its_attempts_is_told_and_the_next_call_is_made() -> None:
    async def play(relay: Relay, desk: Desk) -> None:
        failed = await said(relay, news(0))
        waiting = await said(relay, news(1))
        desk.answers[0].set_exception(ConnectionError("gone"))
        with pytest.raises(ConnectionError, match="gone"):
            await failed[0]
        await said(relay)
        desk.answers[1].set_result(None)
        assert (await waiting[0]).until == 1

    scene(play)


def test_an_attempt_that_went_away_meanwhile_takes_no_other_s_answer() -> None:
    async def play(relay: Relay, desk: Desk) -> None:
        await said(relay, news(0))
        gone, there = await said(relay, news(1), news(2))
        desk.answers[0].set_result(None)
        await said(relay)
        gone.cancel()
        desk.answers[1].set_result(None)
        assert (await there).until == 2

    scene(play)


def test_what_is_printed_goes_along() -> None:
    async def play(relay: Relay, desk: Desk) -> None:
        await said(relay, news(0))
        line = LogLine("stdout", 20, "hello", 0.0)
        await relay.show("run-0", [line])
        await said(relay, news(1, urgent=True))
        assert desk.lines == [("run-0", [line])]

    scene(play)
