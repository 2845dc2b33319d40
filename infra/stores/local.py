"""Durable state in a local folder (or one mounted by every node). Nothing else writes into that folder.

An object is prepared in `<root>/.tmp/`, made durable, and appears under its key by a hard link, which fails if the
key is taken: one system call is both the conditional create and the commit.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from regrow.infra.stores.keys import RESERVED, check_key, check_prefix
from regrow.tasks.disk import explain
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Exists, Missing, Unavailable

STALE_S = 24 * 3600.0
"""A prepared object not written to for so long belongs to a writer that is gone, and is removed."""

_CHUNK = 1 << 20
_UNUSABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
_PASSING = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStore:
    """`Store` in the folder `root`, which the first write makes. Two fsyncs a create (0.24 ms each on a local disk)."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._prepared = self._root / RESERVED
        self._durable: set[Path] = set()  # folders whose own entries are on disk
        self._lock = threading.Lock()
        self._worked = False
        """Whether something was written: what cannot be written after that may be possible again."""

    def __reduce__(self) -> tuple[type[LocalStore], tuple[Path]]:
        return LocalStore, (self._root,)  # goes to workers

    def __str__(self) -> str:
        return str(self._root)

    def create(self, key: str, data: bytes | Path) -> None:
        path = self._path(key)
        with self._failures(key):
            self._make(path.parent)
            self._make(self._prepared)
        temporary = self._prepared / uuid.uuid4().hex
        try:
            self._prepare(key, temporary, data)
            with self._failures(key):
                self._publish(key, temporary, path)
                sync_folder(path.parent)
            self._worked = True
        except Exists:
            with suppress(OSError):
                sync_folder(path.parent)  # the winner may not have come to it yet, and Exists promises it
            raise
        finally:
            with suppress(OSError):
                temporary.unlink()

    def read(self, key: str) -> bytes:
        path = self._path(key)
        with self._failures(key), _absence(key):
            return path.read_bytes()

    def fetch(self, key: str, path: Path) -> None:
        source = self._path(key)
        with self._failures(key), _absence(key):
            content = source.open("rb")
        with content, path.open("wb") as copy, self._failures(key):
            shutil.copyfileobj(content, copy, _CHUNK)

    def list(self, prefix: str) -> list[str]:
        folder = check_prefix(prefix).rpartition("/")[0]
        with self._failures(prefix):
            return sorted(key for key in _walk(self._root / folder, folder) if key.startswith(prefix))

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        paths = {key: self._path(key) for key in keys}
        folders = dict.fromkeys(path.parent for path in paths.values())
        for key, path in paths.items():
            with self._failures(key), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                path.unlink()
        for folder in folders:
            with suppress(OSError):
                sync_folder(folder)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _make(self, folder: Path) -> None:
        """Make `folder` and those above it, their entries durable; the first time also tidy up."""
        ours = folder.is_relative_to(self._root)
        if folder.is_dir() and (folder in self._durable or not ours):
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        # Even if it was there: another process may have made it and not have come to this yet.
        with suppress(PermissionError):  # the folder above the root may be closed to us
            sync_folder(folder.parent)
        if folder == self._prepared:
            _remove_stale(folder)
        with self._lock:
            self._durable.add(folder)

    def _prepare(self, key: str, temporary: Path, data: bytes | Path) -> None:
        if isinstance(data, Path):
            with data.open("rb") as source, self._failures(key):
                _write(temporary, source)
        else:
            with self._failures(key):
                _write(temporary, io.BytesIO(data))

    def _publish(self, key: str, temporary: Path, path: Path) -> None:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # NFS may lose the answer to a link that it made and report the repeated call.
            if temporary.stat().st_nlink == 1:
                raise Exists(key) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # FAT, some network shares: still one winner, but its crash may leave an object cut short,
            # which the log and the checkpoints detect by their checksums.
            try:
                with temporary.open("rb") as source:
                    _write(path, source)
            except FileExistsError:
                raise Exists(key) from None

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        """Turn the operating system's errors into those of the port."""
        try:
            yield
        except OSError as error:
            why = explain(error, self._root)
            if error.errno in _UNUSABLE and not (self._worked and error.errno in _PASSING):
                raise UserError(
                    f"the state folder {self._root} can't be used: {error.strerror} ({error.filename}); "
                    "choose another one, or change its permissions"
                ) from error
            raise Unavailable(key, why) from error


@contextmanager
def _absence(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise Missing(key) from None


def _write(path: Path, source: BinaryIO) -> None:
    """Create the file, complete and on disk; half only if the process dies. Raises FileExistsError."""
    with path.open("xb") as file:
        try:
            shutil.copyfileobj(source, file, _CHUNK)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            path.unlink()
            raise


def sync_folder(folder: Path) -> None:
    """Makes the folder's entries durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_stale(folder: Path) -> None:
    for entry in os.scandir(folder):
        with suppress(OSError):
            if entry.stat().st_mtime < time.time() - STALE_S:
                os.unlink(entry)


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        key = f"{prefix}/{entry.name}" if prefix else entry.name
        if entry.is_dir(follow_symlinks=False):
            if entry.name != RESERVED:
                yield from _walk(folder / entry.name, key)
        elif entry.is_file(follow_symlinks=False):
            yield key
