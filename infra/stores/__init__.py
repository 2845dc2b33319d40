"""Durable state behind the `Store` port: which adapter serves which URL. The adapters are modules beside this one."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from regrow.infra.stores.local import LocalStore
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Store


def gather_seconds(store: Store) -> float:
    """How far apart writes to a store should be that many are made of: 0 where they cost nothing, as in a folder."""
    return float(getattr(store, "gather_seconds", 0.0))


def open_store(url: str) -> Store:
    """The store at `url`: a local path (`~` is expanded), a `file://` or an `s3://` URL. Nothing is created, and nobody
    is asked, before the first use.

    Raises UserError for any other scheme, and for a URL that makes no sense.
    """
    if not url:
        raise UserError("the state's location is empty; give a folder, for example ./state")
    if "://" not in url:
        return LocalStore(Path(url).expanduser())
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path:
            raise UserError(f"{url}: a file URL has three slashes and an absolute path, for example file:///srv/state")
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        from regrow.infra.stores.s3 import open_s3

        return open_s3(url)
    raise UserError(f"{url}: no store for {parts.scheme!r}; give a local path, file:// or s3://")
