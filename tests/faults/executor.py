"""Attempts in threads of this process: the Executor port without Ray. No test lives here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from regrow.tasks.attempt.attempt import run_attempt
from regrow.tasks.ports.executor import AttemptLost, ExecutionResult
from regrow.tasks.ports.messages import Assignment, Shared


class HereExecutor:
    """Runs each attempt in a thread. One that is cancelled is lost at once, though its thread goes
    on, as a zombie would.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._threads = ThreadPoolExecutor()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for all threads."""
        self._threads.shutdown()

    def submit(
        self, assignment: Assignment, *, task_run: str, avoid: Sequence[str] = ()
    ) -> Future[ExecutionResult]:
        """See Executor."""
        ended: Future[ExecutionResult] = Future()

        def run() -> None:
            finished = run_attempt(
                self._shared, assignment, task_run=task_run, carry_on=lambda: False
            )
            if not ended.done():
                ended.set_result(ExecutionResult(finished=(finished,)))

        self._threads.submit(run)
        return ended

    async def outcome(self, handle: Future[ExecutionResult]) -> ExecutionResult:
        """See Executor."""
        return await asyncio.shield(asyncio.wrap_future(handle))

    def cancel(self, handle: Future[ExecutionResult]) -> None:
        """See Executor."""
        if not handle.done():
            handle.set_exception(AttemptLost("infrastructure", "it was cancelled"))
