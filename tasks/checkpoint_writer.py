"""The writer of an attempt's checkpoints: a thread that saves and deletes while training goes on."""

from __future__ import annotations

import logging
import math
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from regrow.tasks.checkpoints import SavedCheckpoint, discard, save
from regrow.tasks.disk import size
from regrow.tasks.errors import UserError
from regrow.tasks.patience import patiently
from regrow.tasks.ports import Store, Unavailable
from regrow.tasks.ranks import GroupBroken, Others, PartMissing
from regrow.tasks.traces import in_a_line

_LOG = logging.getLogger("regrow.trial.checkpoints")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A checkpoint that could not be saved."""

    step: int
    error: Exception


@dataclass(frozen=True, kw_only=True, slots=True)
class _Save:
    folder: Path
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drop:
    manifests: tuple[str, ...]
    keep: tuple[str, ...]


class CheckpointWriter:
    """Saves one attempt's checkpoints in the background, one after the other, while training goes on.

    With `others` each checkpoint has parts of theirs too, and is committed when all of them are durable. They upload only while
    it is saved here, and never while one is deleted: what a part refers to is there until it is committed.
    """

    def __init__(self, store: Store, *, trial: int, attempt: int, others: Others | None = None) -> None:
        self._store, self._trial, self._attempt, self._others = store, trial, attempt, others
        if others is not None:
            others.on_trouble(self.troubled)
        self._known: dict[str, int] = {}
        self._mine: set[str] = set()
        self._jobs: deque[_Save | _Drop] = deque()
        self._saved: list[SavedCheckpoint] = []
        self._failed: list[Failed] = []
        self._idle = True
        self._closed = False
        self._given_up = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.broken: GroupBroken | None = None
        """What kept the others from having their parts of a checkpoint, for good."""
        self._trouble: dict[str, str] = {}
        """Why checkpoints cannot be saved: in the store, or, before that, on the disk of the snapshots."""
        self.on_news: Callable[[], None] = lambda: None
        """Called, from the background, when another checkpoint is durable, or cannot be saved."""

    def submit(self, folder: Path, step: int) -> None:
        """Save `folder` as the checkpoint at `step`, then delete the folder. Returns at once.

        Waits only while another checkpoint is queued behind the one in flight, so that no more than that piles up.
        """
        with self._changed:
            self._changed.wait_for(lambda: not any(isinstance(job, _Save) for job in self._jobs))
            self._put(_Save(folder=folder, step=step))

    def absent(self, step: int, why: str) -> None:
        """See Snapshots: there is no checkpoint at this step; what others have for it is let go with the next."""

    def drop(self, manifests: Collection[str], keep: Collection[str]) -> None:
        """Delete checkpoints as `discard` does, after what was submitted before. Returns at once.

        All that this writer saved and was not told to drop is kept, too. A failure leaves them for `sweep`.
        """
        with self._changed:
            self._put(_Drop(manifests=tuple(manifests), keep=tuple(keep)))

    @property
    def trouble(self) -> str:
        """Why checkpoints cannot be saved at present, "" if they can."""
        return "; ".join(self._trouble.values())

    def troubled(self, where: str, why: str) -> None:
        """Checkpoints cannot be saved ("": they can be again) because of what is `where`."""
        before = bool(self.trouble)
        self._trouble = {**{k: v for k, v in self._trouble.items() if k != where}, **({where: why} if why else {})}
        if bool(self.trouble) != before:
            _LOG.warning("checkpoints cannot be saved: %s" if why else "checkpoints can be saved again%s", why)
            self.on_news()

    def results(self) -> list[SavedCheckpoint]:
        """The checkpoints that became durable since the last call, oldest first."""
        with self._changed:
            saved, self._saved = self._saved, []
            return saved

    def errors(self) -> list[Failed]:
        """The checkpoints that could not be saved since the last call, oldest first; it is the caller's to judge."""
        with self._changed:
            failed, self._failed = self._failed, []
            return failed

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all that was asked for is done, at most `timeout` seconds (None: as long as it takes).

        Returns whether it is.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._idle and not self._jobs, timeout)

    def give_up(self) -> None:
        """Wait no longer for a store that is out of reach: what is not saved by now is not needed."""
        self._given_up.set()
        if self._others is not None:
            self._others.give_up()

    def close(self) -> None:
        """Do all that was asked for, then end the thread. Nothing may be asked for afterwards."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _put(self, job: _Save | _Drop) -> None:
        if self._closed:
            raise RuntimeError("the checkpoint writer is closed")
        self._jobs.append(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="regrow-checkpoints", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                self._idle = False
                job = self._jobs.popleft()
                self._changed.notify_all()
            if isinstance(job, _Save):
                self._save(job)
            else:
                self._drop(job)

    def _save(self, job: _Save) -> None:
        def attempt() -> SavedCheckpoint:
            try:
                return save(
                    self._store, job.folder, trial=self._trial, attempt=self._attempt, step=job.step, known=self._known,
                    others=None if self._others is None else partial(self._others.parts, job.step),
                )
            except Unavailable as error:
                self.troubled("store", f"{error.why}; {self._needs(job)}")
                raise

        try:
            if self._others is not None:
                self._others.upload(job.step)
            # Training goes on meanwhile, until the next checkpoint but one: `submit` then waits.
            saved = patiently(attempt, say=_LOG.info, seconds=math.inf, given_up=self._given_up)
        except GroupBroken as error:
            self.broken = error
        except Exception as error:  # noqa: BLE001 - whatever it is: the trial goes on, and the caller decides
            if isinstance(error, UserError) and self._others is not None:
                self._others.accuse(error)
            elif not isinstance(error, PartMissing):
                self.troubled("store", f"{in_a_line(error)}; {self._needs(job)}")
            with self._changed:
                self._failed.append(Failed(step=job.step, error=error))
        else:
            self._mine.add(saved.manifest)
            with self._changed:
                self._saved.append(saved)
            self.troubled("store", "")
            self.on_news()
        finally:
            shutil.rmtree(job.folder, ignore_errors=True)

    def _needs(self, job: _Save) -> str:
        needed = sum(entry.stat().st_size for entry in job.folder.rglob("*") if entry.is_file())
        return f"the checkpoint of trial {self._trial}, step {job.step}, needs {size(needed)}"

    def _drop(self, job: _Drop) -> None:
        self._mine.difference_update(job.manifests)
        try:
            gone = discard(self._store, job.manifests, {*job.keep, *self._mine} - set(job.manifests))
            for blob in gone:
                self._known.pop(blob, None)
            if self._others is not None:
                self._others.forget(gone)
        except Exception:  # noqa: BLE001 - deleting may fail as it likes; the trial goes on
            self._known.clear()  # it failed half-way: what may be gone must not count as known
            if self._others is not None:
                self._others.forget(None)
            _LOG.warning("could not delete old checkpoints; a sweep will", exc_info=True)
