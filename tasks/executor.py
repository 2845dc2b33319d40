"""The port between the flow and whatever runs attempts: a Ray cluster, or another thread of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from regrow.search.events import Cause
from regrow.tasks.attempt import Finished
from regrow.tasks.messages import Assignment, LogLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What came of a submission: the attempt's outcome, those of the short trials that it took after it, the last of their
    output, and labels of where they ran ("node:...", "spot"), for people.
    """

    finished: tuple[Finished, ...]
    lines: tuple[LogLine, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def fenced(self) -> bool:
        """Whether the last of them had lost its lease: what it says does not count."""
        return self.finished[-1].reply.reason == "fenced"


class AttemptLost(Exception):
    """An attempt is gone without having told its end. `cause` is that of the log's Ended."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(cause, message)
        self.cause = cause
        self.message = message

    def __str__(self) -> str:
        return self.message


class Executor(Protocol):
    """Runs attempts. Safe to use from several threads; `outcome` is awaited in one event loop."""

    def submit(self, assignment: Assignment, *, task_run: str, avoid: Sequence[str] = ()) -> Any:
        """Starts an attempt, once, rather not on the nodes `avoid`; returns a handle of it."""
        ...

    async def outcome(self, handle: Any) -> Carried:
        """What came of it. Raises AttemptLost, also for one that was cancelled. May wait forever for a node that is cut off."""
        ...

    def cancel(self, handle: Any) -> None:
        """Kills it, where it can be reached. Returns at once; does nothing to one that has ended."""
        ...
