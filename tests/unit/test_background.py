"""Background threads: how long they live, and what the end of a block waits for."""

from __future__ import annotations

import threading

from regrow.tasks.process import background


def test_a_block_ends_its_thread() -> None:
    with background.during(threading.Event.wait, name="test") as thread:
        assert thread.is_alive()
        assert thread.daemon
        assert thread.name == "regrow-test"
    assert not thread.is_alive()


def test_a_block_waits_no_longer_than_it_may() -> None:
    free = threading.Event()
    with background.during(lambda _: free.wait(), name="test", wait=0.0) as thread:
        pass
    assert thread.is_alive()
    free.set()
    thread.join()


def test_a_periodic_call_ends_with_its_block_or_when_it_returns_true() -> None:
    calls, twice = list[int](), threading.Event()

    def call() -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            twice.set()

    with background.every(0.001, call, name="test") as thread:
        assert twice.wait(30)
    assert not thread.is_alive()
    with background.every(0.001, lambda: True, name="test") as thread:
        thread.join()


def test_a_periodic_call_that_is_not_due_does_not_delay_the_end() -> None:
    with background.every(1e6, lambda: None, name="test") as thread:
        pass
    assert not thread.is_alive()
