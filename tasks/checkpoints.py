"""Saving, restoring and removing checkpoints through a `Store`. What a manifest is lives in `manifests.py`.

A checkpoint is a folder of files. Each file becomes a blob named by its hash within the attempt; then one manifest is
created, which is the commit: without it the blobs mean nothing, and with it all of them are durable. Which
checkpoints are kept is decided elsewhere, from the log.
"""

from __future__ import annotations

import logging
import math
import shutil
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from regrow.tasks.checkpoint_folder import contents, digest_of
from regrow.tasks.disk import size
from regrow.tasks.manifests import File, Manifest, Unsound, blob_key, blob_scope, manifest_key, own_scope, seal, unseal
from regrow.tasks.patience import patiently
from regrow.tasks.ports import Exists, Missing, Store, Unavailable
from regrow.tasks.traces import in_a_line

_LOG = logging.getLogger("regrow.trial.checkpoints")
PARALLEL = 16
"""Blobs in flight at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A committed checkpoint: `size` bytes in `files` files, of which `uploaded` bytes were not in the store yet."""

    manifest: str
    step: int
    size: int
    files: int
    uploaded: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What was restored: `manifest` and `step`, or None and 0 if nothing could be. `skipped`: (manifest, why not)."""

    manifest: str | None
    step: int
    skipped: list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """What a sweep deleted. `unsure` names live manifests that don't verify: because of them no blob was deleted."""

    manifests: list[str]
    blobs: list[str]
    unsure: list[str]


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


def save(
    store: Store,
    folder: Path,
    *,
    trial: int,
    attempt: int,
    step: int,
    known: MutableMapping[str, int] | None = None,
) -> Saved:
    """Save the folder, which nothing may write to meanwhile, as the attempt's checkpoint at `step`.

    `known`: blobs (key to bytes) that this attempt has in the store and that nobody deletes meanwhile: they are not
    sent again; what is sent is added. Symbolic links within the folder are saved as what they point to.

    Raises UserError for a folder that can't be saved (a link out of it, a socket, a path that isn't portable), Exists
    if another checkpoint was committed at this step, and the store's errors; then nothing was committed.
    """
    paths, folders = contents(folder)
    with ThreadPoolExecutor(PARALLEL) as pool:
        files = list(pool.map(lambda path: _file(folder, path, trial, attempt), paths))
        blobs = {file.key: file for file in files if known is None or file.key not in known}
        sent = list(pool.map(lambda file: _upload(store, folder, file), blobs.values()))
    if known is not None:
        known.update({file.key: file.size for file in blobs.values()})
    key = manifest_key(trial, attempt, step)
    data = seal(Manifest(trial=trial, attempt=attempt, step=step, files=files, folders=folders))
    _commit(store, key, data)
    size = sum(file.size for file in files)
    return Saved(manifest=key, step=step, size=size, files=len(files), uploaded=sum(sent))


def clone(store: Store, source: str, *, trial: int, attempt: int, step: int) -> Saved:
    """Commit the checkpoint `source` (a manifest's key) as that of another trial or step, too, without copying a blob.

    The blobs stay those of the attempt that wrote them: whoever discards its checkpoints names the clone in `keep`.
    Raises Missing or Unsound for a source that can't be used, Exists if another checkpoint was committed there.
    """
    manifest = unseal(source, store.read(source))
    key = manifest_key(trial, attempt, step)
    data = seal(msgspec.structs.replace(manifest, trial=trial, attempt=attempt, step=step))
    _commit(store, key, data)
    size = sum(file.size for file in manifest.files)
    return Saved(manifest=key, step=step, size=size, files=len(manifest.files), uploaded=0)


def restore(store: Store, manifests: Iterable[str], folder: Path) -> Restored:
    """Restore the first of `manifests` (newest first) that is there and sound, as `folder`, which must be empty or
    absent.

    The folder appears only when it is complete and every byte verified. A missing or damaged checkpoint is skipped; a
    store that is out of reach is no reason to fall back: its error is raised.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    skipped: list[tuple[str, str]] = []
    for key in manifests:
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            manifest = unseal(key, store.read(key))
            _fetch(store, manifest, fresh)
            fresh.chmod(0o755)
            fresh.rename(folder)
        except (Missing, Unsound) as error:
            skipped.append((key, str(error)))
        else:
            return Restored(manifest=key, step=manifest.step, skipped=skipped)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return Restored(manifest=None, step=0, skipped=skipped)


def discard(store: Store, manifests: Collection[str], keep: Collection[str]) -> list[str]:
    """Delete these manifests, then the blobs of their own attempts that none of `keep` refers to; returns those.

    `keep`: every manifest that may still be restored or cloned and may share blobs with them. To be called when
    nobody saves for those attempts meanwhile (`CheckpointWriter.drop` sees to it). If one of `keep` doesn't verify,
    or the process dies in between, blobs are left for `sweep`.
    """
    scopes = {key: own_scope(key) for key in manifests}  # of all, before anything is deleted: it checks the keys
    going: set[str] = set()
    for key, scope in scopes.items():
        going.update(blob for blob in _blobs(store, key) or () if blob.startswith(scope))
    staying: set[str] = set()
    for key in set(keep) - set(manifests):
        blobs = _blobs(store, key)
        if blobs is None:
            going.clear()
            break
        staying |= blobs
    store.delete(sorted(manifests))
    orphans = sorted(going - staying)
    store.delete(orphans)
    return orphans


def sweep(store: Store, live: Collection[str], attempts: Iterable[tuple[int, int]]) -> Swept:
    """Delete what these attempts (trial, attempt) left behind: manifests that are not `live`, blobs to which no live one
    refers.

    Only while none of them runs. What others wrote stays: they may be those of a driver that took over meanwhile.
    """
    ended = {blob_scope(*attempt) for attempt in attempts}
    staying: set[str] = set()
    unsure: list[str] = []
    for key in sorted(live):
        blobs = _blobs(store, key)
        if blobs is None:
            unsure.append(key)
        else:
            staying |= blobs
    manifests = [key for key in store.list("manifests/") if key not in live and own_scope(key) in ended]
    store.delete(manifests)
    orphans = [] if unsure else [
        key for key in store.list("blobs/") if key not in staying and f"{key.rpartition('/')[0]}/" in ended
    ]
    store.delete(orphans)
    return Swept(manifests=manifests, blobs=orphans, unsure=unsure)


class CheckpointWriter:
    """Saves one attempt's checkpoints in the background, one after the other, while training goes on."""

    def __init__(self, store: Store, *, trial: int, attempt: int) -> None:
        self._store, self._trial, self._attempt = store, trial, attempt
        self._known: dict[str, int] = {}
        self._mine: set[str] = set()
        self._jobs: deque[_Save | _Drop] = deque()
        self._saved: list[Saved] = []
        self._failed: list[Failed] = []
        self._idle = True
        self._closed = False
        self._given_up = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
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

    def results(self) -> list[Saved]:
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
        def attempt() -> Saved:
            try:
                return save(
                    self._store, job.folder, trial=self._trial, attempt=self._attempt, step=job.step, known=self._known
                )
            except Unavailable as error:
                self.troubled("store", f"{error.why}; {self._needs(job)}")
                raise

        try:
            # Training goes on meanwhile, until the next checkpoint but one: `submit` then waits.
            saved = patiently(attempt, say=_LOG.info, seconds=math.inf, given_up=self._given_up)
        except Exception as error:  # noqa: BLE001 - whatever it is: the trial goes on, and the caller decides
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
        except Exception:  # noqa: BLE001 - deleting may fail as it likes; the trial goes on
            self._known.clear()  # it failed half-way: what may be gone must not count as known
            _LOG.warning("could not delete old checkpoints; a sweep will", exc_info=True)


def _commit(store: Store, key: str, data: bytes) -> None:
    try:
        store.create(key, data)
    except Exists:
        if store.read(key) != data:  # the same: an earlier try, whose answer was lost
            raise


def _blobs(store: Store, key: str) -> set[str] | None:
    """The blobs that a manifest refers to: none if it doesn't exist, None (unknown) if it doesn't verify."""
    try:
        return {file.key for file in unseal(key, store.read(key)).files}
    except Missing:
        return set()
    except Unsound:
        return None


def _file(folder: Path, path: str, trial: int, attempt: int) -> File:
    source = folder / path
    digest, size = digest_of(source)
    executable = bool(source.stat().st_mode & stat.S_IXUSR)
    return File(path=path, key=blob_key(trial, attempt, digest), sha256=digest, size=size, executable=executable)


def _upload(store: Store, folder: Path, file: File) -> int:
    try:
        store.create(file.key, folder / file.path)
    except Exists:
        return 0
    return file.size


def _fetch(store: Store, manifest: Manifest, folder: Path) -> None:
    for path in manifest.folders:
        (folder / path).mkdir(parents=True, exist_ok=True)
    for parent in {(folder / file.path).parent for file in manifest.files}:
        parent.mkdir(parents=True, exist_ok=True)

    def fetch(file: File) -> None:
        target = folder / file.path
        try:
            store.fetch(file.key, target)
        except Missing as error:
            raise Unsound(f"{file.path}: {error}") from None
        digest, size = digest_of(target)
        if (digest, size) != (file.sha256, file.size):
            raise Unsound(f"{file.path}: {file.key} holds {size} bytes with another hash than the {file.size} saved")
        if file.executable:
            target.chmod(target.stat().st_mode | 0o111)

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(fetch, manifest.files))
