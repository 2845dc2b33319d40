"""Stores behind the harmful proxy, and what is done with them. No test lives here."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.infra.local import s3_server
from regrow.infra.stores.s3 import S3Store
from regrow.infra.stores.s3_session import BucketAddress, Patience
from regrow.tasks.ports.store import Store
from tests.contract.s3_proxy import Proxy

QUICK = Patience(connect=2.0, read=5.0, base=0.02, cap=0.2, total=60.0)
READER = ("READERKEY", "a-reader-s-secret")


def at(
    proxy: Proxy, patience: Patience = QUICK, *, bucket: str = "regrow", worked: bool = False
) -> S3Store:
    """A store in a folder of its own behind the proxy."""
    place = BucketAddress(bucket=bucket, endpoint=proxy.endpoint, region=s3_server.REGION)
    return S3Store(place, uuid.uuid4().hex, patience=patience, worked=worked)


OPERATIONS: dict[str, Callable[[Store, Path], object]] = {
    "create": lambda store, _: store.create("new", b"content"),
    "create-large": lambda store, folder: store.create("large", large(folder)),
    "read": lambda store, _: store.read("k"),
    "fetch": lambda store, folder: store.fetch("k", folder / "fetched"),
    "list": lambda store, _: store.list(""),
    "delete": lambda store, _: store.delete(["k"]),
    "delete-together": lambda store, _: store.delete(["k", "never"], ordered=False),
}
small = pytest.mark.parametrize(
    "operation", [name for name in OPERATIONS if name != "create-large"]
)


def large(folder: Path) -> Path:
    file = folder / "large"
    file.write_bytes(b"0123456789abcdef" * (40 << 16))  # 40 MB: three parts
    return file
