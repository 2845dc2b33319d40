"""Checkpoint manifests: their content, their bytes, and their validation. No I/O here.

Everything read back is suspect: a manifest that fails verification, or that would write outside the
checkpoint's folder or refer to anything but blobs, raises `CorruptCheckpoint` and is never used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import PurePosixPath, PureWindowsPath

import msgspec

from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.ports.uploads import CheckpointFile, CheckpointPart

VERSION = 1
MAX_PATH, MAX_NAME = 1024, 255
"""Bytes of a file's path in a checkpoint, and of one component of it."""
_MANIFEST = re.compile(r"manifests/(\d+)/(\d+)/(\d{10})\.json")
_BLOB = re.compile(r"blobs/\d+/\d+/([0-9a-f]{64})")


class CorruptCheckpoint(RegrowError):
    """A checkpoint, or a part of it, is not what was saved; the message says why. Use another."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole checkpoint, of all ranks.

    Attributes:
        version: of the format.
        trial: trial that owns the checkpoint.
        attempt: attempt that committed it.
        step: step after which training continues.
        files: all files. Their blobs may belong to other attempts (a clone).
        folders: folders without files.

    """

    version: int = VERSION
    trial: int
    attempt: int
    step: int
    files: list[CheckpointFile]
    folders: list[str]


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    manifest: msgspec.Raw


_sealed = msgspec.json.Decoder(_Sealed)
_manifest = msgspec.json.Decoder(Manifest)


def manifest_key(trial: int, attempt: int, step: int) -> str:
    """Return the key under which an attempt commits its checkpoint of a step."""
    return f"manifests/{trial}/{attempt}/{step:010d}.json"


def blob_key(trial: int, attempt: int, sha256: str) -> str:
    """Return the key of an attempt's blob. Attempts do not share keys, so that only the holder of
    the lease writes or deletes them.
    """
    return f"{blob_scope(trial, attempt)}{sha256}"


def blob_scope(trial: int, attempt: int) -> str:
    """Return the prefix of all blobs that the attempt wrote."""
    return f"blobs/{trial}/{attempt}/"


def is_manifest(key: str) -> bool:
    """Return whether this is a manifest's key, and not that of a foreign file beside them."""
    return _MANIFEST.fullmatch(key) is not None


def own_scope(key: str) -> str:
    """Return the prefix of the blobs of a manifest's attempt. Raises ValueError."""
    match = _MANIFEST.fullmatch(key)
    if not match:
        raise ValueError(f"{key!r} is no manifest")
    return blob_scope(int(match[1]), int(match[2]))


def joined(parts: Iterable[CheckpointPart]) -> tuple[list[CheckpointFile], list[str]]:
    """Merge the files and empty folders of all parts into one checkpoint; files that several ranks
    wrote alike appear once.

    Raises UserError, with both ranks, for a path at which two ranks wrote different bytes, and for
    conflicting paths (a file below a file).
    """
    files: dict[str, CheckpointFile] = {}
    folders: dict[str, None] = {}
    for part in parts:
        for file in part.files:
            first = files.setdefault(file.path, file)
            if first.sha256 != file.sha256:
                both = f"ranks {first.rank} and {file.rank} wrote different files at {file.path!r}"
                raise UserError(
                    f"checkpoint: {both}; put the rank into the name, or let one of them write it"
                )
        folders.update(dict.fromkeys(part.folders))
    try:
        check_paths(files, folders)
    except CorruptCheckpoint as error:
        raise UserError(
            f"checkpoint: {error}, in the files of all ranks; choose other names"
        ) from None
    return list(files.values()), list(folders)


def seal(manifest: Manifest) -> bytes:
    """Encode the manifest with a checksum as one JSON object; equal manifests give equal bytes."""
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(
        _Sealed(sha256=hashlib.sha256(body).hexdigest(), manifest=msgspec.Raw(body))
    )


def unseal(key: str, data: bytes) -> Manifest:
    """Decode the manifest read from `key`. Raises CorruptCheckpoint if it is damaged, belongs
    to another key or refers to anything but its files' blobs.
    """
    try:
        sealed = _sealed.decode(data)
        if hashlib.sha256(sealed.manifest).hexdigest() != sealed.sha256:
            raise CorruptCheckpoint("the manifest's checksum differs")
        manifest = _manifest.decode(sealed.manifest)
    except ValueError as error:  # base class of msgspec's errors
        raise CorruptCheckpoint(f"the manifest is damaged: {error}") from None
    if manifest.version != VERSION:
        raise CorruptCheckpoint(
            f"the manifest has version {manifest.version}; this regrow reads {VERSION}"
        )
    if manifest_key(manifest.trial, manifest.attempt, manifest.step) != key:
        lease = f"trial {manifest.trial}, attempt {manifest.attempt}"
        raise CorruptCheckpoint(f"the manifest is that of {lease}, step {manifest.step}")
    for file in manifest.files:
        match = _BLOB.fullmatch(file.key)
        if not match or match[1] != file.sha256:
            raise CorruptCheckpoint(
                f"the manifest refers to {file.key!r}, which is not its file's blob"
            )
    check_paths([file.path for file in manifest.files], manifest.folders)
    return manifest


def check_paths(files: Iterable[str], folders: Iterable[str]) -> None:
    """Raise CorruptCheckpoint unless all paths are plain on any system, and do not conflict."""
    taken: dict[str, bool] = {}
    for path, is_file in [*((f, True) for f in files), *((f, False) for f in folders)]:
        parts = path.split("/")
        if any(part in {"", ".", ".."} for part in parts) or "\\" in path or "\0" in path:
            raise CorruptCheckpoint(
                f"the path {path!r} is not a plain one below the checkpoint's folder"
            )
        if len(path.encode()) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in parts):
            raise CorruptCheckpoint(f"the path {path[:80]!r}... is too long")
        if PureWindowsPath(path).drive or PureWindowsPath(path).is_absolute():
            raise CorruptCheckpoint(f"the path {path!r} leaves the checkpoint's folder on Windows")
        if path in taken:
            raise CorruptCheckpoint(f"the path {path!r} occurs twice")
        taken[path] = is_file
    for path in taken:
        for above in PurePosixPath(path).parents:
            if taken.get(str(above)):
                raise CorruptCheckpoint(f"the path {path!r} lies below a file")
