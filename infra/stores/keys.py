"""Which keys every store accepts. Pure functions. The rule is the strictest of all adapters, so
that a key valid in one is valid in all.
"""

from __future__ import annotations

RESERVED = ".tmp"
"""Folder in which the local adapter prepares objects. No part of a key may be equal to it."""

MAX_KEY, MAX_PART = 1024, 255
"""Most bytes of a key (S3), and of one part of it (file names)."""


def check_key(key: str) -> str:
    """Return `key`. Raises ValueError if it is not a relative posix path of plain parts."""
    parts = key.split("/")
    if any(part in {"", ".", "..", RESERVED} for part in parts):
        raise ValueError(f"key {key!r}: parts must not be empty, '.', '..' or {RESERVED!r}")
    if "\\" in key or "\0" in key:
        raise ValueError(f"key {key!r}: a backslash or NUL is not allowed")
    # A lone surrogate can't be encoded: UnicodeEncodeError is a ValueError.
    if len(key.encode()) > MAX_KEY or any(len(part.encode()) > MAX_PART for part in parts):
        raise ValueError(f"key {key[:80]!r}...: longer than 1,024 bytes, or a part longer than 255")
    return key


def is_key(text: str) -> bool:
    """Return whether `check_key` accepts it. Others put what it refuses beside our objects: file
    managers and tools of S3 make objects "folder/" that mark folders.
    """
    try:
        check_key(text)
    except ValueError:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Return `prefix`: "" or the beginning of a key, may end in "/". Raises ValueError."""
    if prefix.rstrip("/"):
        check_key(prefix.removesuffix("/"))
    elif prefix:
        raise ValueError(f"prefix {prefix!r} is absolute")
    return prefix


CONFIDENTIAL = "agents/"
"""Prefix of keys whose objects hold secrets, which no other user of the machine may read: a folder
has them as files for their owner only.
"""
