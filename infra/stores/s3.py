"""Durable state in a bucket of S3, or of an S3-compatible server, through s3fs.

An object is created only if its key is free (`If-None-Match: *`); a large file is sent in parallel
parts, with the condition on the request that joins them. So there is one winner, and nothing
half-written is ever visible. Requests use s3fs's client and run in its event loop. Retries are our
own, because only here is known what a repeated create means. Nothing is listed from a cache.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote

from regrow.infra.machine.addresses import parts_of
from regrow.infra.stores.keys import check_key, check_prefix, is_key
from regrow.infra.stores.s3_failures import Failure, Kind
from regrow.infra.stores.s3_objects import CREATED, Headers, Objects
from regrow.infra.stores.s3_session import METER, Answer, BucketAddress, Patience, Requests
from regrow.search.measured import Traffic
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Exists, Missing, Unavailable
from regrow.tasks.process.addresses import redacted

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+/?")
_SERVER = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?")
"""An endpoint of a variable, which may have a path, as AWS allows it."""
T = TypeVar("T")


_proven: set[tuple[str, str]] = set()
"""URL and endpoint of the roots that this process has proved writable."""


class S3Root:
    """`Root` at `s3://bucket/prefix`. Raises UserError for an invalid URL.

    Each request begins with a store for which nothing has worked yet.
    """

    shared = metered = True

    def __init__(self, url: str) -> None:
        place, prefix = _parsed(url)
        _endpoint(place)  # a wrong one is refused now
        self.url = _url(place, prefix)
        # That of the variables even if the URL has its own: folders are named after it.
        self.endpoint = _variable()[1]

    def store(self, experiment: str) -> S3Store:
        return open_s3(self.url).below(experiment)

    def experiments(self, known: Collection[str] = ()) -> list[str]:
        root = open_s3(self.url)
        return [name for name in root.folders() if name in known or root.holds_any(f"{name}/log/")]

    def has(self, experiment: str) -> bool:
        try:
            return open_s3(self.url).holds_any(f"{experiment}/log/")
        except ValueError:  # no valid name
            return False

    def size(self, experiment: str) -> tuple[int, int]:
        """See Root. Takes one request per thousand objects."""
        return self.store(experiment).size()

    def check_writable(self) -> None:
        """See Root. Raises UserError for a server that overwrites objects."""
        if (self.url, self.endpoint) not in _proven:
            open_s3(self.url).check_writable()
            _proven.add((self.url, self.endpoint))


class S3Store:
    """`Store` below `prefix` ("", or without leading and trailing slash) of a bucket. One request
    for bytes, and for a file below 16 MB.

    Pickled for other processes with the address and never with credentials: each process finds its
    own, as every AWS tool does. `worked`: a request to this place succeeded before, so a failure
    may be temporary.
    """

    gather_seconds = 0.5
    """Seconds for which writes are gathered, of which 20 a second cost $0.36 an hour."""

    def __init__(
        self,
        place: BucketAddress,
        prefix: str = "",
        *,
        patience: Patience | None = None,
        worked: bool = False,
    ) -> None:
        self._prefix = prefix
        self._above = f"{prefix}/" if prefix else ""
        self._requests = Requests(place, patience or Patience(), worked=worked)
        self._objects = Objects(self._requests)

    def __reduce__(self) -> tuple[Any, ...]:
        requests = self._requests
        made = partial(S3Store, patience=requests.patience, worked=requests.worked)
        return made, (requests.place, self._prefix)

    def __str__(self) -> str:
        return f"s3://{self._requests.place.bucket}/{self._prefix}"

    def create(self, key: str, data: bytes | Path) -> None:
        if isinstance(data, Path):
            self._send(key, data, CREATED)
        else:
            # In one request, whatever the size: SeaweedFS 4.48 checks the condition of a request
            # that joins parts, but let all eight of eight concurrent ones win. Files are blobs,
            # named by their content and written by one attempt, so they are not affected.
            self._run(key, self._objects.put(self._above + check_key(key), data))

    def read(self, key: str) -> bytes:
        return self._run(key, self._objects.get(self._above + check_key(key)))

    def fetch(self, key: str, path: Path) -> None:
        self._run(key, self._objects.fetch(self._above + check_key(key), path))

    def list(self, prefix: str) -> list[str]:
        return sorted(self.some(prefix))

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        full = [self._above + check_key(key) for key in keys]
        delete = self._objects.delete if ordered else self._objects.delete_together
        self._run("", delete(full))

    # ---- beyond the port

    def pop_traffic(self) -> Traffic:
        """Return what this process asked of all buckets since the last call."""
        return METER.drain()

    def replace(self, key: str, data: bytes | Path, headers: Headers) -> None:
        """Create the object, in place of another one. `headers`: such as its `ContentType`."""
        if isinstance(data, Path):
            self._send(key, data, headers)
        else:
            self._run(key, self._objects.put(self._above + check_key(key), data, headers))

    def first(self, key: str) -> bytes:
        """Return the object's first bytes, at most 16 MiB. Raises Missing."""
        return self._run(key, self._objects.first(self._above + check_key(key)))

    def link(self, key: str) -> str:
        """Return the address of an object for a browser, without credentials."""
        return self._run(key, self._objects.link(self._above + check_key(key)))

    def folders(self) -> Sequence[str]:
        """Return the parts of the keys before their first slash, sorted."""
        listing = self._objects.listed(self._above, "CommonPrefixes", Delimiter="/")
        found = self._run("", listing)
        names = (str(item["Prefix"]).removeprefix(self._above)[:-1] for item in found)
        return sorted(name for name in names if is_key(name))

    def some(self, prefix: str, most: int | None = None) -> Sequence[str]:
        """Return at most so many keys that begin with `prefix`, by as few requests."""
        found = self._listed(check_prefix(prefix), most=most)
        return [key for item in found if is_key(key := str(item["Key"]))]

    def holds_any(self, prefix: str) -> bool:
        """Return whether any key begins with `prefix`, by one small request."""
        return bool(self.some(prefix, 2))  # the first may be an object that marks the folder

    def size(self) -> tuple[int, int]:
        """Return the number of objects and their bytes. Takes one request per thousand objects."""
        found = self._listed("")
        return len(found), sum(int(item.get("Size", 0)) for item in found)

    def details(self, prefix: str) -> Sequence[tuple[str, str, int, float]]:
        """Return key, ETag, bytes, and time of last change (epoch) of objects below `prefix`."""
        return [
            (
                str(item["Key"]),
                str(item["ETag"]).strip('"'),
                int(item.get("Size", 0)),
                item["LastModified"].timestamp(),
            )
            for item in self._listed(prefix)
        ]

    def _listed(self, prefix: str, *, most: int | None = None) -> Sequence[dict[str, Any]]:
        """Return the objects whose keys begin with `prefix`, with their keys in this store."""
        found = self._run(prefix, self._objects.listed(self._above + prefix, most=most))
        return [{**item, "Key": item["Key"].removeprefix(self._above)} for item in found]

    def below(self, folder: str) -> S3Store:
        """Return the store of a folder of this one."""
        requests = self._requests
        return S3Store(
            requests.place,
            self._above + check_key(folder),
            patience=requests.patience,
            worked=requests.worked,
        )

    def check_writable(self) -> None:
        """Check that objects can be created, only once, and deleted. Raises UserError."""
        key = f".probe/{uuid.uuid4().hex}"
        self.create(key, b"first")
        try:
            self.create(key, b"second")
        except Exists:
            return
        finally:
            self.delete([key])
        raise self._requests.refusal(Failure(kind=Kind.UNCONDITIONAL, why="it overwrites"))

    def _send(self, key: str, path: Path, headers: Headers) -> None:
        full = self._above + check_key(key)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._run(key, self._objects.create(full, file, size, headers))

    def _run(self, key: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._requests.run(work)
        except Answer as answer:
            raise (Exists(key) if answer.kind is Kind.TAKEN else Missing(key)) from None
        except Unavailable as error:
            raise Unavailable(error.key.removeprefix(self._above), error.why) from error


def open_s3(url: str) -> S3Store:
    """Return the store at `s3://bucket/prefix` or `s3://bucket/prefix?endpoint_url=http://...`.
    Makes no request.

    The endpoint is the URL's, else $AWS_ENDPOINT_URL_S3 or $AWS_ENDPOINT_URL. It is read here, so
    that the store takes it to workers with another environment. Raises UserError for an invalid
    URL or variable.
    """
    place, prefix = _parsed(url)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
    return S3Store(
        BucketAddress(bucket=place.bucket, endpoint=_endpoint(place), region=region), prefix
    )


def _endpoint(place: BucketAddress) -> str | None:
    """Return a URL's endpoint, else that of the variables; None: Amazon's. Raises UserError."""
    if place.endpoint:
        parts_of(place.endpoint, "endpoint_url")
        return place.endpoint
    name, given = _variable()
    ignored = os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    if ignored or not given:
        return None
    if not _SERVER.fullmatch(given):
        raise UserError(
            f"{name}={redacted(given)} is no address of a server; write http://host:port"
        )
    parts_of(given, name)
    return given


def _variable() -> tuple[str, str]:
    """Return the variable that names an endpoint, and its value; empty if there is none."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return next(((name, given) for name in names if (given := os.environ.get(name))), ("", ""))


def is_s3(text: str) -> bool:
    """Return whether a text is the URL of a bucket, or of something in one."""
    return text.startswith("s3://")


def in_bucket(url: str) -> tuple[S3Store, str]:
    """Return the store of the whole bucket in a URL, and the rest of the URL's path: a key, or a
    pattern of keys. The options after a ? are those of `open_s3`.
    """
    address, mark, options = url.partition("?")
    bucket, _, rest = address.removeprefix("s3://").partition("/")
    return open_s3(f"s3://{bucket}{mark}{options}"), rest


def _parsed(url: str) -> tuple[BucketAddress, str]:
    """Return the place (bucket and endpoint) and the prefix in a URL. Raises UserError."""
    form = "write s3://bucket/prefix, or s3://bucket/prefix?endpoint_url=http://host:port"
    parts = parts_of(url)
    if "@" in parts.netloc or "@" in parts.query:
        raise UserError(
            "the state's URL must hold no credentials: set AWS_ACCESS_KEY_ID and"
            f" AWS_SECRET_ACCESS_KEY; {form}"
        )
    if not _BUCKET.fullmatch(parts.netloc):
        raise UserError(f"{url}: {parts.netloc!r} is no name of a bucket; {form}")
    prefix = parts.path.strip("/")
    try:
        check_prefix(prefix)
    except ValueError as error:
        raise UserError(f"{url}: {error}; {form}") from None
    options = parse_qs(parts.query, keep_blank_values=True)
    endpoint = options.pop("endpoint_url", [""])[-1]
    if options or parts.fragment:
        raise UserError(
            f"{url}: {next(iter(options), '#' + parts.fragment)!r} is not known there; {form}"
        )
    if "endpoint_url" in parts.query and not _ENDPOINT.fullmatch(endpoint):
        raise UserError(f"{url}: the endpoint_url {endpoint!r} is no address; {form}")
    return BucketAddress(bucket=parts.netloc, endpoint=endpoint.rstrip("/") or None), prefix


def _url(place: BucketAddress, prefix: str) -> str:
    """Return the URL of a place, in its canonical form."""
    path = f"/{prefix}" if prefix else ""
    return f"s3://{place.bucket}{path}" + (
        f"?endpoint_url={quote(place.endpoint, safe=':/')}" if place.endpoint else ""
    )
