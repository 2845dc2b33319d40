"""Writes to the log cost money in a bucket: they are gathered, and nothing that comes after quiet waits."""

from __future__ import annotations

import asyncio

from regrow.infra.coordinator.ledger import Ledger
from regrow.infra.coordinator.spacing import BURST, Spacing
from regrow.infra.log.reading import read_events
from regrow.infra.stores import gather_seconds
from regrow.infra.stores.memory import MemoryStore
from regrow.infra.stores.s3 import open_s3
from regrow.search.events import Capacity, Closed, Closing, Ended
from tests.unit.simulated import created, opened


def test_a_few_after_quiet_go_at_once_and_then_they_are_apart() -> None:
    spacing = Spacing(0.5)
    assert [spacing.take(100.0) for _ in range(BURST + 1)] == [0.0] * (BURST + 1)
    assert [spacing.take(100.0 + 0.5 * n) for n in range(3)] == [0.5] * 3, "one each half a second, each put off by that"
    assert spacing.take(200.0) == 0.0


def test_where_they_cost_nothing_none_waits() -> None:
    spacing = Spacing(0.0)
    assert {spacing.take(1.0) for _ in range(1000)} == {0.0}


def test_only_a_bucket_asks_for_it() -> None:
    assert gather_seconds(open_s3("s3://bucket/state")) == 0.5
    assert gather_seconds(MemoryStore()) == 0.0


class Bucket(MemoryStore):
    """A bucket whose requests cost a fortune."""

    gather_seconds = 3600.0


def test_the_log_in_a_bucket_is_written_in_few_requests_and_its_end_at_once() -> None:
    async def scene() -> None:
        store = Bucket()
        ledger = Ledger(store, clock=lambda: 1.0)
        ledger.claim(created(schedule="fifo"), opened(1.0, slots=1, trials=6))
        writer = asyncio.create_task(ledger.write())
        for slots in range(2, BURST + 3):
            ledger.record(Capacity(t=1.0, slots=slots, widest=1))
            await asyncio.wait_for(ledger.committed(), 20)
        ledger.record(Capacity(t=1.0, slots=1, widest=1))
        waits = asyncio.create_task(ledger.committed())
        await asyncio.sleep(0.02)
        assert not waits.done()
        writer.cancel()

        ledger.record(Closing(t=1.0, status="stopped", why="", by="user"))
        for trial in sorted(ledger.history.running):
            ledger.record(Ended(t=1.0, trial=trial, attempt=1, outcome="lost", cause="preempted", by="driver"))
        writer = asyncio.create_task(ledger.write())
        await asyncio.wait_for(ledger.committed(), 20)
        assert isinstance(read_events(store)[-1], Closed)
        writer.cancel()

    asyncio.run(scene())
