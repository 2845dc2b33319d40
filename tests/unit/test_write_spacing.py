"""Writes to the log cost money in a bucket: they are gathered, and nothing that comes after quiet
waits.
"""

from __future__ import annotations

import asyncio

import pytest

from regrow.flows.coordinator.ledger import BURST, Ledger, WriteSpacing
from regrow.infra.log.reading import read_events
from regrow.infra.stores import gather_seconds
from regrow.infra.stores.s3 import open_s3
from regrow.search.events import Capacity, Closed, Closing, Ended
from tests.memory_store import MemoryStore
from tests.unit.simulated import created, opened


def test_writes_are_apart_but_for_a_few_that_somebody_waits_for() -> None:
    spacing = WriteSpacing(0.5)
    assert spacing.early(100.0, urgent=False) == 0.0, "the first after quiet"
    spacing.wrote(100.0)
    assert spacing.early(100.2, urgent=False) == pytest.approx(0.3)
    for _ in range(BURST + 1):
        assert spacing.early(100.2, urgent=True) == 0.0
        spacing.wrote(100.2)
    assert spacing.early(100.2, urgent=True) == pytest.approx(0.5), "never longer"
    spacing.wrote(100.7)
    assert spacing.early(100.8, urgent=True) == pytest.approx(0.0), "as many again"
    assert spacing.early(200.0, urgent=True) == spacing.early(200.0, urgent=False) == 0.0


def test_where_they_cost_nothing_none_waits() -> None:
    spacing = WriteSpacing(0.0)
    for _ in range(100):
        assert spacing.early(1.0, urgent=False) == 0.0
        spacing.wrote(1.0)


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
        ledger.record(Capacity(t=1.0, slots=2, widest=1))
        await asyncio.wait_for(ledger.committed(urgent=False), 20)
        ledger.record(Capacity(t=1.0, slots=3, widest=1))
        waits = asyncio.create_task(ledger.committed(urgent=False))
        await asyncio.sleep(0.02)
        assert not waits.done()
        ledger.record(Capacity(t=1.0, slots=2, widest=1))
        await asyncio.wait_for(ledger.committed(), 20)
        assert waits.done(), "what was gathered is written with what somebody waits for"
        writer.cancel()

        ledger.record(Closing(t=1.0, status="stopped", why="", by="user"))
        for trial in sorted(ledger.history.running):
            ledger.record(
                Ended(t=1.0, trial=trial, attempt=1, outcome="lost", cause="preempted", by="driver")
            )
        writer = asyncio.create_task(ledger.write())
        await asyncio.wait_for(ledger.committed(), 20)
        assert isinstance(read_events(store)[-1], Closed)
        writer.cancel()

    asyncio.run(scene())
