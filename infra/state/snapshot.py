"""A snapshot of an experiment's code in its state, so that it can be resumed on a machine that has
no checkout of it.

One object for each file, `snapshot/<SHA-256>`, and one that lists them, whose key the log has. In a
Git repository these are the files that Git tracks or would add, elsewhere the source files; hidden
and confidential files are left out, and what is over the limits. What is read back is verified.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from regrow.infra.machine import private_files
from regrow.infra.machine.confidential import confidential
from regrow.infra.state.sources import LEFT_OUT, SUFFIXES, walk
from regrow.tasks.checkpoint.manifests import CorruptCheckpoint, check_paths
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Exists, Missing, Store

SWITCH = "REGROW_SNAPSHOT"
"""Variable that, set to 0, keeps the code out of the state."""
PREFIX = "snapshot/"
MOST_BYTES = 1 << 20
"""Larger files are left out: they are data."""
MOST_TOTAL = 32 << 20
"""Bytes of all files; further ones are left out."""
MOST_FILES = 2_000
MOST_LIST_BYTES = 4 << 20
"""Size of the list that is read."""
_PARALLEL = 16
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(rf"{PREFIX}({_DIGEST.pattern})\.json")


class _File(msgspec.Struct, frozen=True, array_like=True):
    path: str
    sha256: str
    executable: bool


def save(store: Store, folder: str, before: str | None) -> tuple[str | None, list[str]]:
    """Put the code in `folder` into the store, unless it is that of the snapshot `before`. Return
    the snapshot's key (None: there are no files, or the user wants none) and the paths that were
    left out for their size.

    Raises Unavailable.
    """
    if os.environ.get(SWITCH) == "0":
        return None, []
    found, left_out, total = dict[str, bytes](), list[str](), 0
    files = list[_File]()
    for name in _names(Path(folder)):
        path = Path(folder, name)
        try:
            size = path.stat().st_size
            if size > MOST_BYTES or total + size > MOST_TOTAL or len(files) >= MOST_FILES:
                left_out.append(name)
                continue
            content = path.read_bytes()
            executable = os.access(path, os.X_OK)
        except OSError:  # it is gone, or cannot be read
            continue
        total += len(content)
        digest = hashlib.sha256(content).hexdigest()
        found[digest] = content
        files.append(_File(name, digest, executable))
    if not files:
        return None, left_out
    listed = msgspec.json.encode(files)
    key = f"{PREFIX}{hashlib.sha256(listed).hexdigest()}.json"
    if key != before:
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(lambda one: _put(store, PREFIX + one[0], one[1]), found.items()))
        _put(store, key, listed)
    return key, left_out


def _put(store: Store, key: str, content: bytes) -> None:
    with suppress(Exists):  # its key is the hash of its content
        store.create(key, content)


def restore(store: Store, key: str, below: Path) -> Path:
    """Write a snapshot into a folder of its name in the private folder `below`, and return that.

    Raises UserError for a snapshot that is incomplete, or not what its hashes say.
    """
    if (form := _KEY.fullmatch(key)) is None:
        raise UserError(f"the snapshot of the code has the key {key!r}, which is none of regrow's")
    name = form[1]
    folder = below / name
    try:
        files = _listed(store, key, name)
        if folder.is_dir():
            for file in files:
                path = folder / file.path
                if (
                    not path.is_file()
                    or hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256
                ):
                    raise UserError(f"{path} was changed since it was restored; remove {folder}")
            return folder
        private_files.folder(below)
        with tempfile.TemporaryDirectory(dir=below, prefix=".new-") as made:
            with ThreadPoolExecutor(_PARALLEL) as pool:
                list(pool.map(lambda file: _fetch(store, file, Path(made)), files))
            try:
                os.rename(made, folder)
            except OSError:  # another process was faster
                return folder
            os.mkdir(made)  # for the end of the block
    except (Missing, CorruptCheckpoint, msgspec.MsgspecError) as error:
        raise UserError(f"the snapshot of the code, {key}, is damaged: {error}") from None
    return folder


def _listed(store: Store, key: str, name: str) -> list[_File]:
    """Return the files of a snapshot. Raises Missing, CorruptCheckpoint, MsgspecError."""
    with tempfile.TemporaryDirectory() as place:
        store.fetch(key, file := Path(place, "list"))
        if file.stat().st_size > MOST_LIST_BYTES:
            raise CorruptCheckpoint("its list is too long")
        listed = file.read_bytes()
    if hashlib.sha256(listed).hexdigest() != name:
        raise CorruptCheckpoint("its list does not match its hash")
    files = msgspec.json.decode(listed, type=list[_File])
    if len(files) > MOST_FILES or not all(_DIGEST.fullmatch(file.sha256) for file in files):
        raise CorruptCheckpoint("it has too many files, or wrong hashes")
    check_paths((file.path for file in files), ())
    return files


def _fetch(store: Store, file: _File, folder: Path) -> None:
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    store.fetch(PREFIX + file.sha256, path)
    if path.stat().st_size > MOST_BYTES:
        raise CorruptCheckpoint(f"{file.path} is too large")
    if hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256:
        raise UserError(f"{file.path} in the snapshot of the code does not match its hash")
    path.chmod(0o700 if file.executable else 0o600)


def _names(folder: Path) -> Iterator[str]:
    """Yield the paths of the files below a folder, the sources first."""
    left_out = confidential(folder, packed=False)
    names = _tracked(folder)
    if names is None:
        names = [path.relative_to(folder).as_posix() for path in walk(folder) if path is not None]
    names.sort(key=lambda name: (Path(name).suffix not in SUFFIXES, name))
    for name in names:
        parts = name.split("/")
        if any(part.startswith(".") for part in parts) or {*parts[:-1]} & LEFT_OUT:
            continue
        if any(name == one or (one.endswith("/") and name.startswith(one)) for one in left_out):
            continue
        path = folder / name
        if path.is_file() and not path.is_symlink():
            yield name


def _tracked(folder: Path) -> list[str] | None:
    """Return the files that Git tracks or would add; None outside of a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(folder), "ls-files", "-z", "--cached", "--others"]
    try:
        done = subprocess.run(
            [*command, "--exclude-standard"],
            capture_output=True,
            timeout=10.0,
            check=False,
        )
        names = done.stdout.decode().split("\0")
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return sorted({name for name in names if name}) if done.returncode == 0 else None


def noted(left_out: list[str], say: Callable[[str], None]) -> None:
    """Announce what a new experiment's snapshot does not have."""
    if left_out:
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        say(
            f"the snapshot of the code leaves out files over {MOST_BYTES >> 20} MB or beyond"
            f" {MOST_TOTAL >> 20} MB in all: {', '.join(left_out[:3])}{more}; to resume on another"
            " machine, bring them there, and name their folder by --code"
        )
