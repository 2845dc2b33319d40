"""Folders of files that a browser opens: which adapter serves which address, and the adapters.

Not a `Store`: files are replaced, each as a whole, and others read them. A state root is never
kept through this port.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Protocol

from regrow.infra.machine import public_files
from regrow.infra.stores import scheme_of
from regrow.infra.stores.keys import check_key
from regrow.infra.stores.local import path_at
from regrow.infra.stores.s3 import S3Root, open_s3
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Missing
from regrow.tasks.process.addresses import redacted

FIRST = 16 << 20
"""Most bytes that `read` returns."""


class Pages(Protocol):
    """Files below an address, by key as in a `Store`.

    An adapter raises UserError if the place can never be used, and Unavailable if it fails
    temporarily.

    Attributes:
        url: the address: an absolute path, or a URL without credentials.

    """

    url: str

    def read(self, key: str) -> bytes:
        """Return the file's bytes, the first 16 MiB at most. Raises Missing."""

    def put(self, key: str, data: bytes | Path, content_type: str) -> None:
        """Write the file from bytes or a local file; a reader sees the old one or all of this one.

        `content_type` is what a server tells a browser, such as text/html.
        """

    def list(self, prefix: str = "", *, most: int | None = None) -> list[str]:
        """Return the keys that begin with `prefix`, sorted; only some, at most `most`, if given."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the files; missing ones are ignored."""

    def link(self, key: str) -> str:
        """Return the address at which a browser opens the file. It grants no access."""


def open_pages(where: str) -> Pages:
    """Return the files at a path or a file:// or s3:// URL. Nothing is created before the first
    `put`. Raises UserError for any other address.
    """
    match scheme_of(where):
        case "s3":
            return BucketPages(where)
        case "" | "file" if where:
            return FolderPages(path_at(where))
        case _:
            raise UserError(
                f"{redacted(where)!r} holds no pages; give a folder, or s3://BUCKET/PREFIX"
            )


class FolderPages:
    """`Pages` in a local folder. No key leaves the folder through a symbolic link."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.url = str(self._folder)

    def read(self, key: str) -> bytes:
        path = self._path(key)
        with self._failures(path, "read"):
            try:
                with path.open("rb") as file:
                    return file.read(FIRST)
            except FileNotFoundError:
                raise Missing(key) from None

    def put(self, key: str, data: bytes | Path, content_type: str) -> None:
        path = self._path(key)
        with self._failures(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            public_files.replace(path, _parts(data))

    def list(self, prefix: str = "", *, most: int | None = None) -> list[str]:
        keys = (key for key in self._walk() if key.startswith(prefix))
        with self._failures(self._folder, "read"):
            return sorted(islice(keys, most))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with self._failures(path, "deleted"):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # until a folder has other files
                for folder in path.parents[: key.count("/")]:
                    folder.rmdir()

    def link(self, key: str) -> str:
        return self._path(key).as_uri()

    def _walk(self) -> Iterator[str]:
        for folder, _, files in os.walk(self._folder, onerror=_raise):
            there = Path(folder).relative_to(self._folder)
            for name in files:
                if not name.startswith(public_files.PARTIAL):
                    yield (there / name).as_posix()

    def _path(self, key: str) -> Path:
        path = self._folder / check_key(key)
        inside = Path(os.path.realpath(self._folder)) / key
        if os.path.realpath(path.parent) != str(inside.parent):
            raise UserError(f"{path.parent} is a link, which leads elsewhere; remove it")
        return path

    @contextmanager
    def _failures(self, path: Path, what: str) -> Iterator[None]:
        try:
            yield
        except NotADirectoryError:
            folder = next(one for one in (*reversed(path.parents), path) if not one.is_dir())
            raise UserError(f"{folder} is no folder") from None
        except OSError as error:
            raise UserError(f"{path} cannot be {what}: {error.strerror}") from None


class BucketPages:
    """`Pages` below a prefix of a bucket. Whether others may read them is a setting of the bucket,
    which is left as it is.
    """

    def __init__(self, url: str) -> None:
        self.url = S3Root(url).url
        self._store = open_s3(url)

    def read(self, key: str) -> bytes:
        return self._store.first(key)

    def put(self, key: str, data: bytes | Path, content_type: str) -> None:
        # A browser asks each time whether the object has changed.
        self._store.replace(key, data, {"ContentType": content_type, "CacheControl": "no-cache"})

    def list(self, prefix: str = "", *, most: int | None = None) -> list[str]:
        return sorted(self._store.list(prefix) if most is None else self._store.some(prefix, most))

    def delete(self, keys: Iterable[str]) -> None:
        self._store.delete(keys, ordered=False)

    def link(self, key: str) -> str:
        return self._store.link(key)


def _parts(data: bytes | Path) -> Iterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    with data.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
