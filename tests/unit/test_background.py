"""Background threads: how long they live, and what the end of a block waits for."""

from __future__ import annotations

import threading

from regrow.tasks.process import background


def test_a_thread_is_known_by_its_name_and_does_not_hold_the_process() -> None:
    called = list[int]()
    thread = background.start(called.append, 3, name="test")
    thread.join()
    assert called == [3]
    assert thread.daemon
    assert thread.name == "regrow-test"


def test_a_block_waits_no_longer_than_it_may() -> None:
    called, free = threading.Event(), threading.Event()

    def call() -> None:
        called.set()
        free.wait()

    with background.every(1e6, call, name="test", first=0.0, wait=0.0) as thread:
        assert called.wait(30)
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
