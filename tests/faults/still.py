"""What makes runs repeat: within `stillness` time passes with what happens alone, and threads work
when they are told to. No test lives here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from regrow.flows.coordinator import ledger
from regrow.infra.log import compaction
from regrow.infra.log.log import Log
from regrow.tasks.attempt import attempt
from regrow.tasks.checkpoint import saving
from regrow.tasks.checkpoint import writer as writing
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.group import leader as leading
from regrow.tasks.group import peers
from regrow.tasks.group.member import RankMember
from regrow.tasks.ports.ranks import OtherRanks
from regrow.tasks.trial import reporter, trial
from tests.faults.clock import CLOCK
from tests.faults.world import View

MERGE_EVERY, MERGE = 3, 3
"""Segments between two looks at what can be merged, and how many are: small, so that a short log is
merged too.
"""


class Prompt(CheckpointWriter):
    """The real writer with its thread; who asks it for something waits until that is done, so that
    runs repeat.
    """

    def _put(self, job: Any) -> None:
        super()._put(job)
        self.drain()


class Late(Prompt):
    """The same, a checkpoint behind: each is saved when the next is asked for, so that rows go
    ahead of checkpoints.
    """

    _held: tuple[Path, int] | None = None

    def submit(self, folder: Path, step: int, seconds: float = 0.0) -> None:
        """Saves the one before."""
        self._release()
        self._held = folder, step

    def drop(self, manifests: Collection[str], keep: Collection[str]) -> None:
        """After what was submitted before."""
        self._release()
        super().drop(manifests, keep)

    def drain(self, timeout: float | None = None) -> bool:
        """Saves what is left."""
        self._release()
        return super().drain(timeout)

    def _release(self) -> None:
        if self._held is not None:
            (folder, step), self._held = self._held, None
            super().submit(folder, step)


def writer(store: View, *, trial: int, attempt: int, others: OtherRanks | None) -> CheckpointWriter:
    """The writer of an attempt."""
    return (Late if store.late else Prompt)(store, trial=trial, attempt=attempt, others=others)


class InTurn:
    """A pool whose work is done at once, one piece after the other."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, fn: Callable[[Any], Any], each: Iterable[Any]) -> Iterable[Any]:
        """The results, in order."""
        return [fn(one) for one in each]


@contextmanager
def stillness() -> Iterator[None]:
    """Within the block time is that of `clock.py`: no beats, no parallel uploads, background work
    waited for.
    """
    merge = Log.compact
    with (
        patch.object(reporter, "time", CLOCK),
        patch.object(trial, "time", CLOCK),
        patch.object(attempt, "time", CLOCK),
        patch.object(writing, "time", CLOCK),
        patch.dict(ledger.Ledger.__init__.__kwdefaults__, clock=CLOCK.time),
        patch.object(reporter, "FLUSH_SECONDS", 3600.0),
        # the trainable has its news sent itself
        patch.object(reporter.Reporter, "send_now", lambda _: None),
        patch.object(saving, "ThreadPoolExecutor", InTurn),
        patch.object(compaction, "ThreadPoolExecutor", InTurn),
        patch.object(attempt, "CheckpointWriter", writer),
        patch.object(peers, "BEAT_SECONDS", 3600.0),
        patch.object(peers, "BLAME_SECONDS", 0.0),
        patch.object(leading, "LEAVE_SECONDS", 3600.0),  # whose turn it is not may wait for long
        patch.object(RankMember, "_beat", lambda _: None),
        patch.object(ledger, "COMPACT_EVERY", MERGE_EVERY),
        patch.object(Log, "compact", lambda log: merge(log, MERGE)),
    ):
        yield


class Deferred(ThreadPoolExecutor):
    """Runs what the coordinator hands to threads when the scheduler says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Puts it off."""
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def perform(self, place: int) -> None:
        """Does one of them."""
        future, job = self.jobs.pop(place)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)
