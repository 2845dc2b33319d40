"""Durable state behind the `Store` port: which adapter serves which URL. The adapters are the
modules beside this one.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from regrow.infra.stores.local import LocalStore
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store


def gather_seconds(store: Store) -> float:
    """Return the seconds between writes to a store during which records should be gathered into one
    write. 0 if writes cost nothing, as in a folder.
    """
    return float(getattr(store, "gather_seconds", 0.0))


def open_store(url: str) -> Store:
    """Return the store at `url`: a local path (`~` is expanded), a `file://` or an `s3://` URL.
    Nothing is created or contacted before the first use.

    Raises UserError for any other scheme and for an invalid URL.
    """
    if not url:
        raise UserError("the state's location is empty; give a folder, for example ./state")
    if url.startswith("s3://"):
        from regrow.infra.stores.s3 import open_s3

        return open_s3(url)
    return LocalStore(local_path(url))


def local_path(url: str) -> Path:
    """Return the folder at a local path (`~` is expanded) or a `file://` URL.

    Raises UserError for a URL of another scheme, for one with more than a path, and for the `~` of
    a user without a home.
    """
    scheme, mark, _ = url.partition("://")
    if not mark or "/" in scheme:
        try:
            return Path(url).expanduser()
        except RuntimeError as error:
            raise UserError(f"{url}: {error}; write the whole path") from None
    parts = urlsplit(url)
    if parts.scheme != "file":
        raise UserError(
            f"{url}: no store for {parts.scheme!r}; give a local path, file:// or s3://"
        )
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
