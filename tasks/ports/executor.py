"""Port between the flow and the system that runs attempts: a Ray cluster, or a thread in tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from regrow.search.events import Cause, Ended
from regrow.tasks.ports.messages import Assignment, LogLine, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Outcome of an attempt, and the coordinator's last answer to it."""

    ended: Ended
    reply: Reply
    restored: int = 0
    """Step from which the attempt continued, 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """Result of one submission.

    Attributes:
        finished: outcomes of the submitted attempt and of short trials that ran after it in the
            same task run.
        lines: the last of their output.
        labels: where they ran ("node:...", "spot"), for people.

    """

    finished: tuple[Finished, ...]
    lines: tuple[LogLine, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def fenced(self) -> bool:
        """Whether the last attempt had lost its lease, so that its result does not count."""
        return self.finished[-1].reply.reason == "fenced"


class AttemptLost(Exception):
    """An attempt disappeared without reporting its end. `cause` is that of the log's Ended."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(cause, message)
        self.cause = cause
        self.message = message

    def __str__(self) -> str:
        return self.message


class Executor(Protocol):
    """Runs attempts. Safe to use from several threads; `outcome` is awaited in one event loop."""

    def submit(self, assignment: Assignment, *, task_run: str, avoid: Sequence[str] = ()) -> Any:
        """Start an attempt exactly once and return its handle. `avoid`: nodes to use last."""
        ...

    async def outcome(self, handle: Any) -> ExecutionResult:
        """Wait for the attempt's result. Raises AttemptLost, also for an attempt that was
        cancelled. May wait forever for a node that is cut off.
        """
        ...

    def cancel(self, handle: Any) -> None:
        """Kill the attempt if it can be reached. Returns immediately; it may have ended."""
        ...
