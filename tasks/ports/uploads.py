"""Uploaded parts of a checkpoint: files, each with the key of the blob that holds its bytes."""

from __future__ import annotations

import msgspec

from regrow.search.measured import Traffic


class CheckpointFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a checkpoint.

    The rank is stored at each file, not above a list per rank: restoring, verifying, cloning and
    deleting process files regardless of rank, and the manifest of a single rank has the same bytes
    as before ranks existed.

    Attributes:
        path: place in the folder, posix, relative.
        key: store key of the blob.
        sha256: hash of the bytes.
        size: bytes.
        executable: whether the file is executable.
        rank: rank that wrote it.

    """

    path: str
    key: str
    sha256: str
    size: int
    executable: bool
    rank: int = 0


class CheckpointPart(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's upload for a checkpoint, before the checkpoint is committed.

    Attributes:
        files: the files.
        folders: the folders.
        uploaded: bytes that were not in the store before.
        traffic: what the rank's process asked of the store since its last part; None of rank 0, and
            where that is not counted.

    """

    files: list[CheckpointFile]
    folders: list[str]
    uploaded: int
    traffic: Traffic | None = None
