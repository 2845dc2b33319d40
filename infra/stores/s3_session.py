"""Requests to S3: the client that s3fs keeps, one per address and process, and the retries around
it.

Everything here runs in s3fs's event loop, which has its own thread. The requests are in
`s3_objects.py`, the meaning of failures in `s3_failures.py`. s3fs is imported with the first
request, not before.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from regrow.infra.stores.s3_failures import RETRIED, Failure, Kind, failure, user_error
from regrow.search.measured import Traffic
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Unavailable

PARTS = 4
"""Parts of large objects in memory at a time, for all transfers of this process together."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a request may take, and how often it is repeated.

    Before try n + 1 it waits a random time up to min(cap, base x 2^n) (full jitter), 1.5 s in total
    on average. Nothing is repeated once `total` has passed; then the caller decides, and may wait
    for hours.

    Attributes:
        connect: seconds to connect.
        read: seconds to wait for data.
        tries: most tries of one request.
        base: seconds, upper bound of the first wait.
        cap: seconds, upper bound of any wait.
        total: seconds after which no further try begins.

    """

    connect: float = 5.0
    read: float = 30.0
    tries: int = 5
    base: float = 0.2
    cap: float = 5.0
    total: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """A bucket, its endpoint (None: Amazon's, or AWS_PROFILE's), its region (None: configured)."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None


class Answer(Exception):
    """A negative answer: the key is taken, there is no such object, or it is empty."""

    def __init__(self, key: str, failed: Failure) -> None:
        super().__init__(key, failed)
        self.key, self.failed = key, failed

    @property
    def kind(self) -> Kind:
        return self.failed.kind


class Meter:
    """Counts the requests of this process and the bytes that the store sent. Thread-safe.

    Counted is what the client sends, each try of a request for itself: a store charges for tries,
    too. A PUT that aiohttp repeats by itself, as its connection turned out to be dead, counts once.
    Requests that delete are free.
    """

    def __init__(self) -> None:
        self._lock, self._seen = threading.Lock(), Traffic()

    def drain(self) -> Traffic:
        """Return what was counted since the last call, of whatever caller in this process."""
        with self._lock:
            seen, self._seen = self._seen, Traffic()
        return seen

    def watch(self, client: Any) -> None:
        """Count the requests of a client from now on."""
        client.meta.events.register("before-send.s3", self._sent)
        client.meta.events.register("after-call.s3.GetObject", self._answered)

    def _sent(self, event_name: str, **_: Any) -> None:
        name = event_name.rpartition(".")[2]
        if name.startswith(("Delete", "Abort")):
            return
        reads = name.startswith(("Get", "Head"))
        self._add(Traffic(reads=1) if reads else Traffic(writes=1))

    def _answered(self, parsed: Mapping[str, Any], **_: Any) -> None:
        self._add(Traffic(sent=int(parsed.get("ContentLength", 0))))

    def _add(self, more: Traffic) -> None:
        with self._lock:
            self._seen += more


METER = Meter()
"""The meter of this process."""


class Requests:
    """Requests to one place. `worked`: one succeeded before, so failures may be temporary."""

    def __init__(self, place: BucketAddress, patience: Patience, *, worked: bool) -> None:
        self.place, self.patience, self.worked = place, patience, worked
        self._worked_here = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in s3fs's event loop and wait for it, in any other thread."""
        try:
            running = asyncio.run_coroutine_threadsafe(work, self._sessions.loop)
        except BaseException:
            work.close()
            raise
        try:
            return running.result()
        except BaseException:
            running.cancel()  # in case the wait was interrupted
            raise

    async def tried(self, key: str, attempt: Callable[[Any], Awaitable[T]]) -> T:
        """Return `attempt(client)`, repeated while busy. Raises Answer, UserError, Unavailable."""
        patience, begun = self.patience, time.monotonic()
        session: S3Session | None = None
        for turn in range(patience.tries):
            try:
                session = await self.session()
                result = await attempt(session.client)
            except Exception as error:
                failed = failure(error)
                if failed is None:
                    raise
                last = turn + 1 == patience.tries or time.monotonic() - begun > patience.total
                if failed.kind not in RETRIED or last:
                    raise self._verdict(key, failed, session) from error
            else:
                self.worked = self._worked_here = True
                return result
            await asyncio.sleep(random.uniform(0.0, min(patience.cap, patience.base * 2**turn)))  # noqa: S311 - jitter
        raise AssertionError("the last turn raises")

    async def session(self) -> S3Session:
        """Return the current client."""
        return await self._sessions.current()

    def refusal(self, failed: Failure, credentials: str = "none were found") -> UserError:
        """Return the error for the user about a failure that a retry does not fix."""
        return user_error(failed, self.place.bucket, self.place.endpoint, credentials)

    def _verdict(self, key: str, failed: Failure, session: S3Session | None) -> Exception:
        if failed.kind in (Kind.TAKEN, Kind.MISSING, Kind.EMPTY):
            return Answer(key, failed)
        if failed.kind in (Kind.EXPIRED, Kind.REFUSED, Kind.NONE):
            self._sessions.forget(session)  # the next session reads the credentials again
        passing = {
            Kind.BUSY: True,
            Kind.AWAY: self.worked,
            Kind.EXPIRED: self.worked,
            # Another machine's credentials may have worked while this machine never had any.
            Kind.REFUSED: self._worked_here,
            Kind.NONE: self._worked_here,
        }
        refusal = self.refusal(failed, session.credentials if session else "none were found")
        if not passing.get(failed.kind, False):
            return refusal
        if failed.kind in RETRIED:
            where = self.place.endpoint or "Amazon S3"
            return Unavailable(key, f"{failed.why} (bucket {self.place.bucket!r} at {where})")
        return Unavailable(key, str(refusal))

    @property
    def _sessions(self) -> _Sessions:
        return _sessions(self.place.endpoint, self.place.region, self.patience)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class S3Session:
    """A client, where its credentials were found, and the limit of parts in memory."""

    client: Any
    credentials: str
    room: asyncio.Semaphore


class _Sessions:
    """The s3fs file system for an address, made again when credentials must be read again."""

    def __init__(self, endpoint: str | None, region: str | None, patience: Patience) -> None:
        try:
            from fsspec.asyn import get_loop
        except ImportError:
            raise _not_installed() from None
        self.loop: asyncio.AbstractEventLoop = get_loop()
        self._endpoint, self._region, self._patience = endpoint, region, patience
        self._room = asyncio.Semaphore(PARTS)
        self._making = asyncio.Lock()
        self._session: S3Session | None = None
        self._fs: Any = None

    async def current(self) -> S3Session:
        if self._session is None:
            async with self._making:
                if self._session is None:
                    self._fs = fs = await asyncio.to_thread(self._file_system)
                    client = await fs.set_session()
                    METER.watch(client)
                    found = await fs.session.get_credentials()
                    self._session = S3Session(
                        client=client,
                        credentials=f"from {found.method}" if found else "none were found",
                        room=self._room,
                    )
        return self._session

    def forget(self, session: S3Session | None) -> None:
        if session is self._session:
            self._session = None

    def _file_system(self) -> Any:
        try:
            import s3fs
        except ImportError:
            raise _not_installed() from None
        config = {
            "connect_timeout": self._patience.connect,
            "read_timeout": self._patience.read,
            "max_pool_connections": 64,
            "tcp_keepalive": True,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            # Newer checksums travel in a trailer that few servers except Amazon's accept. Over http
            # the signature covers the body, over https TLS does, and regrow verifies what it reads.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        return s3fs.S3FileSystem(
            endpoint_url=self._endpoint,
            client_kwargs={"region_name": self._region} if self._region else {},
            config_kwargs=config,
            use_listings_cache=False,
            skip_instance_cache=True,
            loop=self.loop,
        )


def _not_installed() -> UserError:
    return UserError(
        "state in S3 needs the package s3fs, which is not installed: pip install 'regrow[s3]'"
    )


_all: dict[tuple[Any, ...], _Sessions] = {}
_all_lock = threading.Lock()


def _sessions(endpoint: str | None, region: str | None, patience: Patience) -> _Sessions:
    # With the process id: a forked child shares neither loop nor connections.
    key = (os.getpid(), endpoint, region, patience)
    with _all_lock:
        if key not in _all:
            _all[key] = _Sessions(endpoint, region, patience)
        return _all[key]
