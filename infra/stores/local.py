"""Durable state in a local folder, or one mounted by every node: `LocalRoot` is the folder,
`LocalStore` the folder of an experiment in it. Nothing else writes there.

An object is prepared in `<root>/.tmp/`, made durable, and then published under its key by a hard
link, which fails if the key is taken: one system call is both the conditional create and the
commit. A file system without hard links gets an equivalent rename that never replaces. Without
either, the object is written directly under its key, in a file that only one writer can create.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from regrow.infra.machine import given_files, private_files
from regrow.infra.machine.addresses import parts_of
from regrow.infra.machine.naming import UNSUPPORTED, NoSuchStep, publish
from regrow.infra.stores.keys import CONFIDENTIAL, RESERVED, check_key, check_prefix, is_key
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Exists, Missing, Unavailable
from regrow.tasks.process.disk import explain, leads_above

STALE_S = 24 * 3600.0
"""Seconds after which a prepared object is removed, whose writer wrote nothing and is gone."""

_CHUNK = 1 << 20
_UNUSABLE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
_PASSING = {errno.EACCES, errno.EPERM, errno.EROFS}


class LocalRoot:
    """`Root` in the folder at a path or a `file://` URL. Raises UserError for an impossible one."""

    endpoint = ""
    shared = metered = False  # several machines may mount the folder, which is not known

    def __init__(self, url: str) -> None:
        self._folder = _resolved(url)
        self.url = str(self._folder)

    def store(self, experiment: str) -> LocalStore:
        folder = self._folder / experiment
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise UserError(
                f"{folder} is no folder, so no experiment can have this name; remove it, or choose"
                " another with --name"
            )
        return LocalStore(folder)

    def experiments(self, known: Collection[str] = ()) -> list[str]:
        found = []
        for path in self._entries():
            # Another user's: `.services`, or an experiment that is private to one of a team.
            with suppress(PermissionError):
                if _is_begun(path):
                    found.append(path.name)
        return sorted(found)

    def has(self, experiment: str) -> bool:
        path = next((one for one in self._entries() if one.name == experiment), None)
        try:
            return path is not None and _is_begun(path)
        except PermissionError as error:
            raise UserError(
                f"experiment {experiment!r} in {self._folder} cannot be read ({error.strerror});"
                f" its owner can change that, for example by `chmod -R g+rX {path}`"
            ) from error

    def _entries(self) -> list[Path]:
        try:
            return list(self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unusable(self._folder, "read", error) from error

    def size(self, experiment: str) -> tuple[int, int]:
        count = size = 0
        for folder, _, files in os.walk(self._folder / experiment):
            for file in files:
                with suppress(OSError):  # deleted meanwhile
                    count, size = count + 1, size + os.lstat(os.path.join(folder, file)).st_size
        return count, size

    def check_writable(self) -> None:
        """See Root. A root that exists keeps its permissions, as a team may share it on purpose."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise unusable(self._folder, "written", error) from error


def _is_begun(folder: Path) -> bool:
    """Return whether the folder is an experiment's. A driver that was killed before its first write
    leaves an empty log folder: there is nothing to resume. Raises PermissionError.
    """
    try:
        return bool(os.listdir(folder / "log"))
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return False
        if isinstance(error, PermissionError):
            raise
        raise unusable(folder, "read", error) from error


def _resolved(url: str) -> Path:
    """Return the absolute path at an address, without symbolic links."""
    root = path_at(url)
    try:
        root = given_files.resolved(root)
        str(root).encode()
        if not stat.S_ISDIR(root.stat().st_mode):
            raise UserError(
                f"the state root {root} is not a folder; choose another with --state or"
                " REGROW_STATE"
            )
    except FileNotFoundError:
        if not root.is_absolute():  # the current folder was deleted
            raise UserError(
                f"{url}: the folder in which you are is gone; go to another, or name the whole path"
            ) from None
    except UnicodeEncodeError:
        name = os.fsencode(root).decode(errors="backslashreplace")
        raise UserError(
            f"the state root {name}: its path is not UTF-8, as MLflow has all paths; rename it"
        ) from None
    except OSError as error:
        raise unusable(root, "used", error) from error
    return root


def path_at(url: str) -> Path:
    """Return the path in an address: `~` is expanded, a URL is decoded. Raises UserError."""
    if not url.lower().startswith("file://"):
        return given_files.expanded(url)
    parts = parts_of(url)
    if parts.netloc not in {"", "localhost"} or not parts.path:
        raise UserError(
            f"{url}: a file URL has three slashes and an absolute path, for example"
            " file:///srv/state"
        )
    if parts.query or parts.fragment:
        raise UserError(
            f"{url}: in a file URL a ? is written %3F and a # is written %23; or give the path as"
            " it is"
        )
    return Path(unquote(parts.path))


def unusable(root: Path | str, what: str, error: OSError) -> UserError:
    """Return the error for a folder of state that cannot be used, read or written."""
    hint = "choose another with --state or REGROW_STATE"
    return UserError(f"the state root {root} cannot be {what} ({error.strerror}); {hint}")


class LocalStore:
    """`Store` in the folder `root`. A create costs two fsyncs (0.24 ms each on a local disk)."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._prepared = self._root / RESERVED
        self._durable: set[Path] = set()  # folders whose own entries are on disk
        # Folders below the root that are on other file systems, by a link or a mount.
        self._apart: set[Path] = set()
        self._lock = threading.Lock()
        self._worked = False
        """Whether a write succeeded before: one that fails after that may do so again."""

    def __reduce__(self) -> tuple[type[LocalStore], tuple[Path]]:
        return LocalStore, (self._root,)  # stores are sent to workers

    def __str__(self) -> str:
        return str(self._root)

    def create(self, key: str, data: bytes | Path) -> None:
        path = self._path(key)
        with self._failures(key):
            self._make(path.parent)
        try:
            self._publish(key, data, path)
            with self._failures(key):
                sync_folder(path.parent)
            self._worked = True
        except Exists:
            with suppress(OSError):
                # The winner may not have synced yet, but Exists promises that it is durable.
                sync_folder(path.parent)
            raise

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
            return sorted(
                key
                for key in _walk(self._root / folder, folder)
                if key.startswith(prefix) and is_key(key)
            )

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        paths = {key: self._path(key) for key in keys}
        folders = dict.fromkeys(path.parent for path in paths.values())
        for key, path in paths.items():
            with (
                self._failures(key),
                suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
            ):
                path.unlink()
        for folder in folders:
            with suppress(OSError):
                sync_folder(folder)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _make(self, folder: Path) -> None:
        """Create `folder` and its parents durably. The first time also removes stale files."""
        ours = folder.is_relative_to(self._root)
        if folder.is_dir() and (folder in self._durable or not ours):
            return
        self._make(folder.parent)
        new = not folder.is_dir()
        # A state root that is created here is readable by its owner only.
        folder.mkdir(exist_ok=True, mode=0o777 if ours else 0o700)
        if new and ours and folder != self._root:
            self._share(folder, 0o7777)
        # Also if it existed: another process may have created it and not synced it yet.
        with suppress(PermissionError):  # we may lack permission for the folder above the root
            sync_folder(folder.parent)
        if folder == self._prepared:
            _remove_stale(folder)
        with self._lock:
            self._durable.add(folder)

    def _publish(self, key: str, data: bytes | Path, path: Path) -> None:
        beside = path.parent in self._apart
        prepared = (path.parent if beside else self._root) / RESERVED
        temporary = prepared / uuid.uuid4().hex
        try:
            with self._failures(key):
                self._make(prepared)
            self._write(key, temporary, data)
            with self._failures(key, FileExistsError, NoSuchStep):
                publish(temporary, path)
        except FileExistsError:
            raise Exists(key) from None
        except NoSuchStep as error:
            if error.errno == errno.EXDEV and not beside:
                self._apart.add(path.parent)
                self._publish(key, data, path)
                return
            # Some network shares: still only one winner, but its crash may leave a truncated
            # object, which the log and the checkpoints detect by their checksums.
            try:
                self._write(key, path, data)
            except FileExistsError:
                raise Exists(key) from None
        finally:
            with suppress(OSError):
                temporary.unlink()

    def _write(self, key: str, path: Path, data: bytes | Path) -> None:
        """Write a new file. Raises FileExistsError, and errors of reading `data` as they are."""
        confidential = key.startswith(CONFIDENTIAL)
        opener = private_files.opener if confidential else None
        if isinstance(data, Path):
            with data.open("rb") as source, self._failures(key, FileExistsError):
                _write(path, source, opener)
        else:
            with self._failures(key, FileExistsError):
                _write(path, io.BytesIO(data), opener)
        if not confidential:
            self._share(path, 0o666)

    def _share(self, path: Path, most: int) -> None:
        """Give what was just made the permissions of the experiment's folder, but for those outside
        of `most`: whoever may use an experiment can read what each of its users adds, whatever
        their umasks.
        """
        with suppress(OSError):  # a file system without permissions
            path.chmod(stat.S_IMODE(self._root.stat().st_mode) & most)

    @contextmanager
    def _failures(self, key: str, *but: type[OSError]) -> Iterator[None]:
        """Turn the operating system's errors into those of the port, except those in `but`."""
        try:
            yield
        except but:
            raise
        except OSError as error:
            if key.startswith(CONFIDENTIAL) and _is_anothers(error):
                raise UserError(
                    f"{error.filename} belongs to another user: only the one whose agents run the"
                    " experiment can add agents, list them and stop it"
                ) from error
            why = explain(error, self._root)
            if error.errno in _UNUSABLE and not (self._worked and error.errno in _PASSING):
                raise UserError(
                    f"the state folder {self._root} can't be used: {error.strerror}"
                    f" ({error.filename}); choose another one, or change its permissions"
                ) from error
            raise Unavailable(key, why) from error


@contextmanager
def _absence(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise Missing(key) from None


def _is_anothers(error: OSError) -> bool:
    """Return whether a file could not be opened because another user has it."""
    with suppress(OSError, TypeError):  # gone meanwhile; no file is named
        return error.errno == errno.EACCES and os.stat(error.filename).st_uid != os.getuid()
    return False


def _write(path: Path, source: BinaryIO, opener: Callable[[str, int], int] | None) -> None:
    """Create the file, on disk, incomplete only if the process dies. Raises FileExistsError."""
    with open(path, "xb", opener=opener) as file:
        try:
            shutil.copyfileobj(source, file, _CHUNK)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            path.unlink()
            raise


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable. Some file systems do so only later, by themselves."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {*UNSUPPORTED, errno.EBADF}:
            raise
    finally:
        os.close(handle)


def _remove_stale(folder: Path) -> None:
    # A symbolic link leads to files that are not ours.
    for entry in () if folder.is_symlink() else os.scandir(folder):
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
        # Follows links, as to a larger disk.
        if entry.is_dir():
            if entry.name != RESERVED and not leads_above(entry):
                yield from _walk(folder / entry.name, key)
        elif entry.is_file(follow_symlinks=False):
            yield key
