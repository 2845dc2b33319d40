"""Durable state behind the `Store` port: which adapter serves which URL. The adapters are modules beside this one."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from regrow.infra.stores.local import LocalStore
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Store


def open_store(url: str) -> Store:
    """The store at `url`: a local path (`~` is expanded) or a `file://` URL. Nothing is created before the first
    write.

    Raises UserError for any other scheme.
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
        raise UserError(f"{url}: S3 is not supported yet; give a local folder")
    raise UserError(f"{url}: no store for {parts.scheme!r}; give a local path or file://")
