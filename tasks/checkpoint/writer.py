"""Writer of an attempt's checkpoints: a thread that saves and deletes during training."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from regrow.tasks.checkpoint.retry import retry_while_unavailable
from regrow.tasks.checkpoint.saving import SavedCheckpoint, discard, save
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import in_a_line
from regrow.tasks.ports.ranks import GroupBroken, OtherRanks, PartMissing
from regrow.tasks.ports.store import Store
from regrow.tasks.process import background
from regrow.tasks.process.disk import file_states, size

_LOG = logging.getLogger("regrow.trial.checkpoints")


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveFailed:
    """A checkpoint that could not be saved."""

    step: int
    error: Exception


@dataclass(frozen=True, kw_only=True, slots=True)
class _Save:
    folder: Path
    step: int
    began: float
    """When the user's code was called to write it, monotonic seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drop:
    manifests: tuple[str, ...]
    keep: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    job: Callable[[], object]
    failed: Callable[[Exception], object]


MOST_CALLS = 200
"""Calls that wait at most; more wait `CALL_SECONDS` for their turn."""
CALL_SECONDS = 10.0


class CheckpointWriter:
    """Saves one attempt's checkpoints in the background, one after the other, during training.

    With `others`, each checkpoint includes parts of the other ranks and is committed when all parts
    are durable. The other ranks upload only while this writer saves, and never while it deletes:
    blobs that a part refers to exist until the commit.
    """

    def __init__(
        self, store: Store, *, trial: int, attempt: int, others: OtherRanks | None = None
    ) -> None:
        self._store, self._trial, self._attempt, self._others = store, trial, attempt, others
        if others is not None:
            others.on_trouble(self.troubled)
        self._known: dict[str, int] = {}
        self._mine: set[str] = set()
        self._jobs: deque[_Save | _Drop | _Call] = deque()
        self._saved: list[SavedCheckpoint] = []
        self._failed: list[SaveFailed] = []
        self.refused: UserError | None = None
        """See Snapshots."""
        self.unsaved: SaveFailed | None = None
        """The newest checkpoint, if it could not be saved."""
        self._idle = True
        self._closed = False
        self._given_up = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.broken: GroupBroken | None = None
        """Why the other ranks can never deliver their parts of a checkpoint."""
        self._trouble: dict[str, str] = {}
        """Why checkpoints cannot be saved, by place: the store, or the disk of the snapshots."""
        self.on_news: Callable[[], None] = lambda: None
        """Called from the background when a checkpoint becomes durable, or cannot be saved."""

    def submit(self, folder: Path, step: int, seconds: float = 0.0) -> None:
        """Save `folder` as the checkpoint at `step`, then delete the folder. `seconds`: that the
        user's code took to write it.

        Returns immediately, unless another checkpoint is queued behind the one in progress: at most
        one is queued.
        """
        began = time.monotonic() - seconds
        with self._changed:
            self._changed.wait_for(lambda: not any(isinstance(job, _Save) for job in self._jobs))
            self._put(_Save(folder=folder, step=step, began=began))

    def absent(self, step: int, why: str) -> None:
        """See Snapshots. Other ranks drop their parts with the next checkpoint."""

    def drop(self, manifests: Collection[str], keep: Collection[str]) -> None:
        """Delete checkpoints as `discard` does, after all saves submitted before. Returns
        immediately.

        Checkpoints that this writer saved and was not asked to drop are kept, too. If deleting
        fails, they are left for `sweep`.
        """
        with self._changed:
            self._put(_Drop(manifests=tuple(manifests), keep=tuple(keep)))

    def call(self, job: Callable[[], object], failed: Callable[[Exception], object]) -> bool:
        """Call `job` after the requests before it, and before the checkpoints after it; again while
        the store is unreachable. `failed` is called with any other error.

        Returns False if too many calls have waited for too long, and the job is not accepted.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: sum(isinstance(one, _Call) for one in self._jobs) < MOST_CALLS, CALL_SECONDS
            ):
                return False
            self._put(_Call(job=job, failed=failed))
            return True

    @property
    def trouble(self) -> str:
        """Why checkpoints cannot be saved at present, "" if they can."""
        return "; ".join(self._trouble.values())

    def troubled(self, where: str, why: str) -> None:
        """Record why checkpoints cannot be saved at `where`; "" once they can be again."""
        before = bool(self.trouble)
        self._trouble = {
            **{k: v for k, v in self._trouble.items() if k != where},
            **({where: why} if why else {}),
        }
        if bool(self.trouble) != before:
            _LOG.warning(
                "checkpoints cannot be saved: %s" if why else "checkpoints can be saved again%s",
                why,
            )
            self.on_news()

    def results(self) -> list[SavedCheckpoint]:
        """Return the checkpoints that became durable since the last call, oldest first."""
        with self._changed:
            saved, self._saved = self._saved, []
            return saved

    def errors(self) -> list[SaveFailed]:
        """Return the checkpoints that could not be saved since the last call, oldest first."""
        with self._changed:
            failed, self._failed = self._failed, []
            return failed

    def drain(self, timeout: float | None = None) -> bool:
        """Wait for all requests, at most `timeout` seconds (None: no limit). Returns success."""
        with self._changed:
            return self._changed.wait_for(lambda: self._idle and not self._jobs, timeout)

    def give_up(self) -> None:
        """Stop waiting for an unreachable store: checkpoints not saved by now are not needed."""
        self._given_up.set()
        if self._others is not None:
            self._others.give_up()

    def close(self) -> None:
        """Finish all requests, then end the thread. No requests may follow."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _put(self, job: _Save | _Drop | _Call) -> None:
        if self._closed:
            raise RuntimeError("the checkpoint writer is closed")
        if (
            self._thread is None
        ):  # raises where no thread can be started: then nothing is waited for
            self._thread = background.start(self._run, name="checkpoints")
        self._jobs.append(job)
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
            match job:
                case _Save():
                    self._save(job)
                case _Drop():
                    self._drop(job)
                case _Call():
                    try:
                        retry_while_unavailable(job.job, say=_LOG.info, given_up=self._given_up)
                    except Exception as error:  # noqa: BLE001 - on any error the trial continues
                        job.failed(error)

    def _save(self, job: _Save) -> None:
        once = partial(
            save,
            self._store,
            job.folder,
            trial=self._trial,
            attempt=self._attempt,
            step=job.step,
            known=self._known,
            others=None if self._others is None else partial(self._others.parts, job.step),
        )
        try:
            if self._others is not None:
                self._others.upload(job.step)
            # Training continues meanwhile; `submit` blocks at the next checkpoint but one.
            saved = retry_while_unavailable(
                once,
                say=_LOG.info,
                given_up=self._given_up,
                failed=lambda error: self.troubled("store", f"{error.why}; {self._needs(job)}"),
            )
        except GroupBroken as error:
            self.broken = error
        except Exception as error:  # noqa: BLE001 - on any error the trial continues, and the caller decides
            if isinstance(error, UserError):  # a retry, here or elsewhere, would fail, too
                why = str(error).removeprefix("checkpoint: ")
                self.refused = error = UserError(
                    f"the checkpoint of step {job.step} cannot be saved: {why}"
                )
                if self._others is not None:
                    self._others.accuse(self.refused)
            elif not isinstance(error, PartMissing):
                self.troubled("store", f"{in_a_line(error)}; {self._needs(job)}")
            self.unsaved = SaveFailed(step=job.step, error=error)
            with self._changed:
                self._failed.append(self.unsaved)
        else:
            self.unsaved = None
            saved = replace(saved, seconds=time.monotonic() - job.began)
            self._mine.add(saved.manifest)
            with self._changed:
                self._saved.append(saved)
            self.troubled("store", "")
            self.on_news()
        finally:
            shutil.rmtree(job.folder, ignore_errors=True)

    def _needs(self, job: _Save) -> str:
        needed = sum(bytes_of_it for bytes_of_it, _, _ in file_states(job.folder).values())
        return f"the checkpoint of trial {self._trial}, step {job.step}, needs {size(needed)}"

    def _drop(self, job: _Drop) -> None:
        self._mine.difference_update(job.manifests)
        try:
            gone = discard(
                self._store, job.manifests, {*job.keep, *self._mine} - set(job.manifests)
            )
            for blob in gone:
                self._known.pop(blob, None)
            if self._others is not None:
                self._others.forget(gone)
        except Exception:  # noqa: BLE001 - the trial continues whatever error deleting raises
            self._known.clear()  # it failed half-way: deleted blobs must not count as known
            if self._others is not None:
                self._others.forget(None)
            _LOG.warning("could not delete old checkpoints; a sweep will", exc_info=True)
