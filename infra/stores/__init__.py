"""Durable state behind the ports `Root` and `Store`: which adapter serves which address. The
adapters are the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Collection
from pkgutil import resolve_name
from typing import Protocol

from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store
from regrow.tasks.process.addresses import redacted

STORES = {
    "": "regrow.infra.stores.local:LocalRoot",
    "file": "regrow.infra.stores.local:LocalRoot",
    "s3": "regrow.infra.stores.s3:S3Root",
}
"""The scheme of an address ("" of a path) -> the class that is called with the address and is a
`Root`. Another package names its class in an entry point of the group `regrow.stores`.
"""


class Root(Protocol):
    """A state root: the place where experiments are kept, each in a `Store` of its own.

    A root is opened in each process anew, by its `url`; its stores are pickled for workers. An
    adapter raises UserError if the place can never be used, and Unavailable if it fails
    temporarily.

    Attributes:
        url: its address in the canonical form, which opens the same root from any folder: an
            absolute path for a local folder, a URL for all else.
        endpoint: address of the server, if the environment and not the URL has it; else "".
        shared: whether other machines see the same root at this address, as far as known.
        metered: whether requests cost time or money, so that fewer of them are made.

    """

    url: str
    endpoint: str
    shared: bool
    metered: bool

    def store(self, experiment: str) -> Store:
        """Return the store of an experiment, whether or not it exists. Makes no request."""

    def experiments(self, known: Collection[str] = ()) -> list[str]:
        """Return the names of the experiments, sorted: those with an object below `log/`.

        `known`: names of experiments that need not be asked for such an object again.
        """

    def has(self, experiment: str) -> bool:
        """Return whether the experiment exists. False for a name that no experiment may have."""

    def size(self, experiment: str) -> tuple[int, int]:
        """Return how many objects an experiment has, and their bytes."""

    def check_writable(self) -> None:
        """Check that objects can be created, only once, and deleted. Creates the root."""


def open_root(url: str) -> Root:
    """Return the state root at `url`: a local path (`~` is expanded), or a URL of a registered
    scheme. Nothing is created or contacted before the first use.

    Raises UserError for any other scheme and for an invalid address.
    """
    if not url:
        raise UserError("the state's location is empty; give a folder, for example ./state")
    scheme = scheme_of(url)
    if not scheme and url.lower().startswith("s3:"):
        raise UserError(
            f"{url}: a bucket has two slashes, s3://BUCKET/PREFIX; for a folder write ./{url}"
        )
    if scheme in STORES:
        adapter = resolve_name(STORES[scheme])
    else:
        from importlib.metadata import entry_points  # the search takes 40 ms

        others = entry_points(group="regrow.stores")
        if scheme not in others.names:
            forms = " or ".join(f"{name}://" for name in (*filter(None, STORES), *others.names))
            raise UserError(f"{redacted(url)}: no store for {scheme!r}; give a local path, {forms}")
        adapter = others[scheme].load()
    root: Root = adapter(url)
    return root


def scheme_of(url: str) -> str:
    """Return the scheme of an address, in small letters; "" of a path."""
    scheme, mark, _ = url.partition("://")
    return scheme.lower() if mark and "/" not in scheme else ""


def gather_seconds(store: Store) -> float:
    """Return the seconds between writes to a store during which records should be gathered into one
    write. 0 if writes cost nothing, as in a folder.
    """
    return float(getattr(store, "gather_seconds", 0.0))
