"""What a checkpoint is made of: the manifest that commits it, its bytes, and what a sound one looks like. No I/O
here.

Everything read back is suspect: a manifest that doesn't verify, or that would write outside the checkpoint's folder
or refer to anything but blobs, raises `Unsound` and is never acted on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import PurePosixPath, PureWindowsPath

import msgspec

from regrow.tasks.errors import RegrowError, UserError

VERSION = 1
MAX_PATH, MAX_NAME = 1024, 255
"""Bytes of a file's path in a checkpoint, and of one part of it."""
_MANIFEST = re.compile(r"manifests/(\d+)/(\d+)/(\d{10})\.json")
_BLOB = re.compile(r"blobs/\d+/\d+/([0-9a-f]{64})")


class Unsound(RegrowError):
    """A checkpoint, or a part of it, is not what was saved; fall back to another. The message says why."""


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file: where it belongs in the folder (posix, relative), the blob that holds its bytes, and which rank wrote it.

    The rank stands at each file, not above a list of a rank's files: whoever restores, verifies, clones or deletes a checkpoint
    walks its files whoever wrote them, and the manifest of one rank has the bytes that it had when there were no ranks.
    """

    path: str
    key: str
    sha256: str
    size: int
    executable: bool
    rank: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has uploaded of a checkpoint, before it is committed; `uploaded` bytes were not in the store yet."""

    files: list[File]
    folders: list[str]
    uploaded: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All of a checkpoint, of all ranks. `folders` are those that hold no file. Blobs of other attempts may be referred to (a
    clone).
    """

    version: int = VERSION
    trial: int
    attempt: int
    step: int
    files: list[File]
    folders: list[str]


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    manifest: msgspec.Raw


_sealed = msgspec.json.Decoder(_Sealed)
_manifest = msgspec.json.Decoder(Manifest)


def manifest_key(trial: int, attempt: int, step: int) -> str:
    """Where the checkpoint of that attempt at that step is committed."""
    return f"manifests/{trial}/{attempt}/{step:010d}.json"


def blob_key(trial: int, attempt: int, sha256: str) -> str:
    """Where that attempt keeps these bytes: its own, so that only the holder of the lease writes or deletes them."""
    return f"{blob_scope(trial, attempt)}{sha256}"


def blob_scope(trial: int, attempt: int) -> str:
    """The prefix of all blobs that the attempt wrote."""
    return f"blobs/{trial}/{attempt}/"


def own_scope(key: str) -> str:
    """The prefix of the blobs that belong to a manifest's attempt. Raises ValueError if `key` is no manifest's."""
    match = _MANIFEST.fullmatch(key)
    if not match:
        raise ValueError(f"{key!r} is no manifest")
    return blob_scope(int(match[1]), int(match[2]))


def joined(parts: Iterable[Part]) -> tuple[list[File], list[str]]:
    """The files and empty folders of all parts as one checkpoint's; what several ranks wrote alike is there once.

    Raises UserError, with both ranks, for a path at which two of them wrote different bytes, and for paths in each other's way.
    """
    files: dict[str, File] = {}
    folders: dict[str, None] = {}
    for part in parts:
        for file in part.files:
            first = files.setdefault(file.path, file)
            if first.sha256 != file.sha256:
                both = f"ranks {first.rank} and {file.rank} wrote different files at {file.path!r}"
                raise UserError(f"checkpoint: {both}; put the rank into the name, or let one of them write it")
        folders.update(dict.fromkeys(part.folders))
    try:
        check_paths(files, folders)
    except Unsound as error:
        raise UserError(f"checkpoint: {error}, in the files of all ranks; choose other names") from None
    return list(files.values()), list(folders)


def seal(manifest: Manifest) -> bytes:
    """The manifest's bytes, with a checksum over them: one JSON object, the same for equal manifests."""
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(sha256=hashlib.sha256(body).hexdigest(), manifest=msgspec.Raw(body)))


def unseal(key: str, data: bytes) -> Manifest:
    """The manifest read from `key`. Raises Unsound if it is damaged, belongs elsewhere or refers to what it must not."""
    try:
        sealed = _sealed.decode(data)
        if hashlib.sha256(sealed.manifest).hexdigest() != sealed.sha256:
            raise Unsound("the manifest's checksum differs")
        manifest = _manifest.decode(sealed.manifest)
    except ValueError as error:  # msgspec's errors are
        raise Unsound(f"the manifest is damaged: {error}") from None
    if manifest.version != VERSION:
        raise Unsound(f"the manifest has version {manifest.version}; this regrow reads {VERSION}")
    if manifest_key(manifest.trial, manifest.attempt, manifest.step) != key:
        lease = f"trial {manifest.trial}, attempt {manifest.attempt}"
        raise Unsound(f"the manifest is that of {lease}, step {manifest.step}")
    for file in manifest.files:
        match = _BLOB.fullmatch(file.key)
        if not match or match[1] != file.sha256:
            raise Unsound(f"the manifest refers to {file.key!r}, which is not its file's blob")
    check_paths([file.path for file in manifest.files], manifest.folders)
    return manifest


def check_paths(files: Iterable[str], folders: Iterable[str]) -> None:
    """Raises Unsound unless all are plain paths below a folder, on any system, that don't get in each other's way."""
    taken: dict[str, bool] = {}
    for path, is_file in [*((f, True) for f in files), *((f, False) for f in folders)]:
        parts = path.split("/")
        if any(part in {"", ".", ".."} for part in parts) or "\\" in path or "\0" in path:
            raise Unsound(f"the path {path!r} is not a plain one below the checkpoint's folder")
        if len(path.encode()) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in parts):
            raise Unsound(f"the path {path[:80]!r}... is too long")
        if PureWindowsPath(path).drive or PureWindowsPath(path).is_absolute():
            raise Unsound(f"the path {path!r} leaves the checkpoint's folder on Windows")
        if path in taken:
            raise Unsound(f"the path {path!r} occurs twice")
        taken[path] = is_file
    for path in taken:
        for above in PurePosixPath(path).parents:
            if taken.get(str(above)):
                raise Unsound(f"the path {path!r} lies below a file")
