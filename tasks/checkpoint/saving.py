"""Saving, restoring and removing checkpoints through a `Store`. The manifest itself is defined in
`manifests.py`.

A checkpoint is a folder of files. Each file becomes a blob named by its hash within the attempt
(`upload`, by each rank that has a part of it). Then one manifest is created, which is the commit:
without it the blobs mean nothing, and with it all of them are durable. Which checkpoints are kept
is decided elsewhere, from the log.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from regrow.search.measured import Traffic
from regrow.tasks.checkpoint.manifests import (
    CorruptCheckpoint,
    Manifest,
    blob_key,
    blob_scope,
    check_paths,
    is_manifest,
    joined,
    manifest_key,
    own_scope,
    seal,
    unseal,
)
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Exists, Missing, Store, created
from regrow.tasks.ports.uploads import CheckpointFile, CheckpointPart
from regrow.tasks.process.disk import file_states, leads_above

PARALLEL = 16
"""Blobs transferred at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A committed checkpoint.

    Attributes:
        manifest: key of the manifest.
        step: step of the checkpoint.
        size: bytes of all files.
        files: number of files.
        uploaded: bytes that were not in the store before.
        seconds: from the call of the user's code until it was durable; None: not measured.
        traffic: what the processes of the other ranks asked of the store for their parts.

    """

    manifest: str
    step: int
    size: int
    files: int
    uploaded: int
    seconds: float | None = None
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """Result of restoring.

    Attributes:
        manifest: key of the restored manifest, None if none could be restored.
        step: its step, 0 for none.
        skipped: (manifest, reason) of those that could not be used.

    """

    manifest: str | None
    step: int
    skipped: list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    """What a sweep deleted.

    Attributes:
        manifests: deleted manifests.
        blobs: deleted blobs.
        unsure: live manifests that fail verification; because of them no blob was deleted.

    """

    manifests: list[str]
    blobs: list[str]
    unsure: list[str]


def save(
    store: Store,
    folder: Path,
    *,
    trial: int,
    attempt: int,
    step: int,
    known: MutableMapping[str, int] | None = None,
    others: Callable[[], Iterable[CheckpointPart]] | None = None,
) -> SavedCheckpoint:
    """Save the folder as the attempt's checkpoint at `step`: see `upload` and `commit`.

    `others` waits for the parts of other ranks; with None the folder is the whole checkpoint.
    """
    own = upload(store, folder, trial=trial, attempt=attempt, known=known)
    parts = [own, *(others() if others is not None else ())]
    return commit(store, parts, trial=trial, attempt=attempt, step=step)


def upload(
    store: Store,
    folder: Path,
    *,
    trial: int,
    attempt: int,
    rank: int = 0,
    known: MutableMapping[str, int] | None = None,
) -> CheckpointPart:
    """Make the files of a folder durable, as the part of a checkpoint that belongs to `rank`.

    Nothing may write to the folder meanwhile. Symbolic links within it are saved as their targets.
    `known` maps keys of blobs that this attempt has in the store, and that nothing deletes
    meanwhile, to their bytes: these are not sent again, and new ones are added.

    Raises UserError for a folder that cannot be saved (a link out of it, a socket, a path that is
    not portable, a file that is still being written), and the store's errors.
    """
    before = file_states(folder)
    paths, folders = contents(folder)
    with ThreadPoolExecutor(PARALLEL) as pool:
        try:
            files = list(pool.map(lambda path: _file(folder, path, trial, attempt, rank), paths))
        except FileNotFoundError as error:
            raise _changed(os.path.relpath(str(error.filename), folder)) from None
        blobs = {file.key: file for file in files if known is None or file.key not in known}
        sent = list(pool.map(lambda file: _upload(store, folder, file), blobs.values()))
    after = file_states(folder)
    if changed := next((p for p in {**before, **after} if before.get(p) != after.get(p)), None):
        # Blobs may hold bytes that do not match the hash in their key: no checkpoint may refer to
        # them, now or later.
        store.delete([key for key, size in zip(blobs, sent, strict=True) if size])
        raise _changed(os.path.relpath(changed, folder))
    if known is not None:
        known.update({file.key: file.size for file in blobs.values()})
    return CheckpointPart(files=files, folders=folders, uploaded=sum(sent))


def commit(
    store: Store, parts: Collection[CheckpointPart], *, trial: int, attempt: int, step: int
) -> SavedCheckpoint:
    """Commit the parts of all ranks, which are durable, as the attempt's checkpoint at `step`.

    Raises UserError for parts that do not fit together (see `joined`), Exists if another checkpoint
    was committed at this step, and the store's errors; in all cases nothing was committed.
    """
    files, folders = joined(parts)
    manifest = Manifest(trial=trial, attempt=attempt, step=step, files=files, folders=folders)
    made = _commit(store, manifest, uploaded=sum(part.uploaded for part in parts))
    asked = (part.traffic for part in parts if part.traffic is not None)
    return replace(made, traffic=sum(asked, Traffic()))


def clone(store: Store, source: str, *, trial: int, attempt: int, step: int) -> SavedCheckpoint:
    """Commit the checkpoint `source` (a manifest's key) also as that of another trial or step,
    without copying a blob.

    The blobs stay with the attempt that wrote them: a caller that discards its checkpoints must
    name the clone in `keep`. Raises Missing or CorruptCheckpoint for a source that cannot be used,
    Exists if another checkpoint was committed there.
    """
    found = unseal(source, store.read(source))
    manifest = msgspec.structs.replace(found, trial=trial, attempt=attempt, step=step)
    return _commit(store, manifest, uploaded=0)


def restore(store: Store, manifests: Iterable[str], folder: Path) -> Restored:
    """Restore the first of `manifests` (newest first) that exists and verifies, as `folder`, which
    must be empty or absent.

    The folder appears only when it is complete and every byte is verified. A missing or damaged
    checkpoint is skipped. An unreachable store is no reason to fall back: its error is raised.
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
        except (Missing, CorruptCheckpoint) as error:
            skipped.append((key, str(error)))
        else:
            return Restored(manifest=key, step=manifest.step, skipped=skipped)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return Restored(manifest=None, step=0, skipped=skipped)


def restore_one(store: Store, manifest: str, folder: Path) -> Path:
    """Restore the checkpoint of this manifest as `folder`, which must be empty or absent, and
    return it. Raises UserError if it is missing or damaged, or the folder cannot be written.
    """
    try:
        restored = restore(store, [manifest], folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    if restored.manifest is None:
        raise UserError(f"the checkpoint {manifest} cannot be restored: {restored.skipped[0][1]}")
    return folder


def discard(store: Store, manifests: Collection[str], keep: Collection[str]) -> list[str]:
    """Delete these manifests, then the blobs of their attempts that no manifest of `keep` refers
    to; return those blobs. `keep`: every manifest that may still be restored or cloned.

    Call this only while nothing saves for those attempts (`CheckpointWriter.drop` ensures that). If
    a manifest of `keep` fails verification, or the process dies in between, blobs are left for
    `sweep`.
    """
    # computed for all before anything is deleted: own_scope checks the keys
    scopes = {key: own_scope(key) for key in manifests}
    going: set[str] = set()
    for key, scope in scopes.items():
        going.update(blob for blob in _blobs(store, key) or () if blob.startswith(scope))
    kept = [_blobs(store, key) for key in set(keep) - set(manifests)]
    if None in kept:
        going.clear()
    staying = set[str]().union(*(blobs or () for blobs in kept))
    store.delete(sorted(manifests), ordered=False)
    orphans = sorted(going - staying)
    store.delete(orphans, ordered=False)
    return orphans


def sweep(store: Store, live: Collection[str], attempts: Iterable[tuple[int, int]]) -> SweepResult:
    """Delete what these attempts (trial, attempt) left behind: manifests that are not `live`, and
    blobs that no live manifest refers to.

    Call this only while none of the attempts runs. Objects of other attempts stay: they may belong
    to a driver that took over meanwhile.
    """
    ended = {blob_scope(*attempt) for attempt in attempts}
    found = {key: _blobs(store, key) for key in sorted(live)}
    unsure = [key for key, blobs in found.items() if blobs is None]
    staying = set[str]().union(*(blobs or () for blobs in found.values()))
    manifests = [
        key
        for key in filter(is_manifest, store.list("manifests/"))
        if key not in live and own_scope(key) in ended
    ]
    store.delete(manifests, ordered=False)
    orphans = [
        key
        for key in (() if unsure else store.list("blobs/"))
        if key not in staying and f"{key.rpartition('/')[0]}/" in ended
    ]
    store.delete(orphans, ordered=False)
    return SweepResult(manifests=manifests, blobs=orphans, unsure=unsure)


def _commit(store: Store, manifest: Manifest, *, uploaded: int) -> SavedCheckpoint:
    key = manifest_key(manifest.trial, manifest.attempt, manifest.step)
    if not created(store, key, seal(manifest)):
        raise Exists(key)
    return SavedCheckpoint(
        manifest=key,
        step=manifest.step,
        size=sum(file.size for file in manifest.files),
        files=len(manifest.files),
        uploaded=uploaded,
    )


def _blobs(store: Store, key: str) -> set[str] | None:
    """Return the blobs of a manifest: none if there is no such, None if it does not verify."""
    try:
        return {file.key for file in unseal(key, store.read(key)).files}
    except Missing:
        return set()
    except CorruptCheckpoint:
        return None


def _file(folder: Path, path: str, trial: int, attempt: int, rank: int) -> CheckpointFile:
    source = folder / path
    digest, size = digest_of(source)
    executable = bool(source.stat().st_mode & stat.S_IXUSR)
    key = blob_key(trial, attempt, digest)
    return CheckpointFile(
        path=path, key=key, sha256=digest, size=size, executable=executable, rank=rank
    )


def _changed(path: str) -> UserError:
    return _refused(
        f"{path!r} was written to while it was saved; write all of it before you hand it over"
    )


def _upload(store: Store, folder: Path, file: CheckpointFile) -> int:
    try:
        store.create(file.key, folder / file.path)
    except (Exists, FileNotFoundError):  # a file that is gone by now is noticed afterwards
        return 0
    return file.size


def _fetch(store: Store, manifest: Manifest, folder: Path) -> None:
    for path in manifest.folders:
        (folder / path).mkdir(parents=True, exist_ok=True)
    for parent in {(folder / file.path).parent for file in manifest.files}:
        parent.mkdir(parents=True, exist_ok=True)

    def fetch(file: CheckpointFile) -> None:
        target = folder / file.path
        try:
            store.fetch(file.key, target)
        except Missing as error:
            rank = f", of rank {file.rank}" if file.rank else ""
            raise CorruptCheckpoint(f"{file.path}{rank}: {error}") from None
        digest, size = digest_of(target)
        if (digest, size) != (file.sha256, file.size):
            raise CorruptCheckpoint(
                f"{file.path}: {file.key} holds {size} bytes with another hash than the {file.size}"
                " saved"
            )
        if file.executable:
            target.chmod(target.stat().st_mode | 0o111)

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(fetch, manifest.files))


def contents(folder: Path) -> tuple[list[str], list[str]]:
    """Return the files and the empty folders, as posix paths relative to `folder`, sorted.

    A symbolic link within the folder counts as its target. Raises UserError, naming the path, for
    whatever cannot be restored unchanged on any system: a link out of the folder or in a circle, a
    socket, a name that is not portable, an unreadable file.
    """
    files: list[str] = []
    folders: list[str] = []
    top = folder.resolve(strict=True)

    def walk(at: Path, path: str) -> None:
        try:
            names = sorted(os.listdir(at))
        except PermissionError:
            raise _refused(f"the folder {path!r} may not be read; change its mode") from None
        if not names and path:
            folders.append(path)
        for name in names:
            below = f"{path}/{name}" if path else name
            real = _real(at / name, below)
            if not real.is_relative_to(top):
                raise _refused(
                    f"{below!r} is a link out of the folder, to {real}; copy that into it"
                )
            mode = real.stat().st_mode
            if stat.S_ISREG(mode):
                if not os.access(real, os.R_OK):
                    raise _refused(f"{below!r} may not be read; change its mode")
                files.append(below)
            elif not stat.S_ISDIR(mode):
                raise _refused(f"{below!r} is neither a file nor a folder; don't save it")
            elif leads_above(folder / below):
                raise _refused(f"{below!r} is a link to a folder that it lies in")
            else:
                walk(real, below)

    walk(top, "")
    for path in [*files, *folders]:
        try:
            path.encode()
        except UnicodeEncodeError:
            why = f"the name {path!r} is not valid UTF-8; choose another one"
            raise _refused(why) from None
    try:
        check_paths(files, folders)
    except CorruptCheckpoint as error:
        raise _refused(f"{error}; choose another name") from None
    return files, folders


def _real(entry: Path, shown: str) -> Path:
    """Return the file or folder that an entry is, or leads to. Raises UserError for none."""
    try:
        return entry.resolve(strict=True)
    except PermissionError:
        raise _refused(f"{shown!r} may not be looked at; change the mode of its folder") from None
    except (OSError, RuntimeError):
        raise _refused(f"the link {shown!r} leads nowhere; save what it should point to") from None


def _refused(why: str) -> UserError:
    return UserError(f"checkpoint: {why}")


def digest_of(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file, in hex, and its size in bytes."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return digest.hexdigest(), file.tell()
