"""Requests for objects of S3, as coroutines. Keys are complete; their meaning is unknown."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from regrow.infra.stores.s3_failures import Failure, Kind
from regrow.infra.stores.s3_session import PARTS, Answer, Requests
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Unavailable

PART = 16 << 20
"""Bytes of a part; larger above 10,000 parts. 8 MB were a quarter slower."""
SLOWEST = 64 << 10
"""Bytes per second below which an upload counts as hanging."""
_WRITER = "regrow-writer"
_VANISHED = "its upload vanished"
Headers = Mapping[str, str]
CREATED: Headers = {"IfNoneMatch": "*"}
"""The condition of a request that creates an object, and never replaces one."""
_PAGE = 1000


class Objects:
    """The objects of a bucket. Methods raise Answer if S3's answer is negative."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._bucket = requests.place.bucket

    # ---- creating and replacing

    async def create(
        self, key: str, source: BinaryIO, size: int, headers: Headers = CREATED
    ) -> None:
        """Create the object from everything that `source` yields; `size` is the expected number of
        bytes. Raises Answer (TAKEN), and Unavailable if the server loses the upload. `headers`: see
        `put`.
        """
        head = await asyncio.to_thread(source.read, PART)
        if len(head) < PART:
            await self.put(key, head, headers)
        else:
            await self._upload(key, source, size, head, headers)

    async def put(self, key: str, data: bytes, headers: Headers = CREATED) -> None:
        """Create the object by one request. `headers`: what it is given and under which condition;
        without IfNoneMatch it replaces another object.
        """
        writer = uuid.uuid4().hex
        try:
            await self._ask(
                key,
                "put_object",
                seconds=self._requests.patience.read + len(data) / SLOWEST,
                **self._at(key),
                Body=data,
                Metadata={_WRITER: writer},
                **headers,
            )
        except Answer as answer:
            # The answer to an earlier try may have been lost, and the object be ours. This is
            # checked after our first try as well, because aiohttp itself repeats a PUT when a
            # kept-alive connection turns out to be dead.
            if answer.kind is not Kind.TAKEN or await self._writer_of(key) != writer:
                raise

    async def _upload(
        self, key: str, source: BinaryIO, size: int, head: bytes, headers: Headers
    ) -> None:
        """Send parts in parallel, then join them. `head`: what was already read of the source."""
        condition = {name: value for name, value in headers.items() if name in CREATED}
        if condition:
            await self._refuse_taken(key)  # before gigabytes are sent for nothing
        writer = uuid.uuid4().hex
        begun = await self._ask(
            key,
            "create_multipart_upload",
            seconds=self._requests.patience.read,
            **self._at(key),
            Metadata={_WRITER: writer},
            **{name: value for name, value in headers.items() if name not in CREATED},
        )
        upload = {**self._at(key), "UploadId": str(begun["UploadId"])}
        try:
            parts = await self._send_parts(key, upload, source, size, head)
            await self._join(key, upload, parts, writer, condition)
        except BaseException:
            await self._abort(upload)
            raise

    async def _send_parts(
        self, key: str, upload: dict[str, Any], source: BinaryIO, size: int, head: bytes
    ) -> list[dict[str, Any]]:
        length = PART if size <= 9_000 * PART else -(-size // 9_000)
        room = (await self._requests.session()).room
        sent: list[asyncio.Task[str]] = []

        async def send(number: int, data: bytes) -> str:
            seconds = self._requests.patience.read + PARTS * len(data) / SLOWEST
            answer = await self._ask(
                key, "upload_part", seconds=seconds, **upload, PartNumber=number, Body=data
            )
            return str(answer["ETag"])

        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await room.acquire()
                    try:
                        data, head = (
                            head + await asyncio.to_thread(source.read, length - len(head)),
                            b"",
                        )
                        if not data:
                            break
                        sent.append(group.create_task(send(len(sent) + 1, data)))
                        sent[-1].add_done_callback(lambda _: room.release())
                    except BaseException:
                        room.release()
                        raise
                room.release()
        except ExceptionGroup as several:
            first = several.exceptions[0]
            if isinstance(first, Answer):
                first = Unavailable(key, _VANISHED)
            raise first from None
        return [{"PartNumber": n, "ETag": task.result()} for n, task in enumerate(sent, 1)]

    async def _join(
        self,
        key: str,
        upload: dict[str, Any],
        parts: list[dict[str, Any]],
        writer: str,
        condition: Headers,
    ) -> None:
        """Make the object from its parts."""
        try:
            await self._ask(
                key,
                "complete_multipart_upload",
                seconds=10 * self._requests.patience.read,
                **upload,
                **condition,
                MultipartUpload={"Parts": parts},
            )
        except Answer as answer:
            # The answer to an earlier try may have been lost here, too; then the upload is gone.
            if await self._writer_of(key) == writer:
                return
            if answer.kind is Kind.TAKEN:
                raise
            if condition:
                await self._refuse_taken(key)
            raise Unavailable(key, _VANISHED) from None

    async def _abort(self, upload: dict[str, Any]) -> None:
        """Try once to abort the upload. Parts that remain cost space until a rule removes them."""
        with suppress(Exception):
            async with asyncio.timeout(self._requests.patience.connect):
                await (await self._requests.session()).client.abort_multipart_upload(**upload)

    async def _refuse_taken(self, key: str) -> None:
        """Raise Answer (TAKEN) if the object exists."""
        if await self._writer_of(key) is not None:
            raise Answer(key, Failure(kind=Kind.TAKEN, why="it is there"))

    async def _writer_of(self, key: str) -> str | None:
        """Return the id of the object's writer: "" if it has none, None without an object."""
        try:
            answer = await self._ask(key, "head_object", **self._at(key))
        except Answer:
            return None
        return str(answer.get("Metadata", {}).get(_WRITER, ""))

    # ---- reading

    async def get(self, key: str) -> bytes:
        """Return the object's bytes. Raises Answer (MISSING)."""
        return (await self._requests.tried(key, lambda client: self._get(client, key)))[0]

    async def first(self, key: str) -> bytes:
        """Return the object's first bytes, at most PART. Raises Answer (MISSING)."""
        return (await self._first(key))[0]

    async def link(self, key: str) -> str:
        """Return the address of the object for a browser. Makes no request."""
        client = (await self._requests.session()).client
        signed = await client.generate_presigned_url("get_object", Params=self._at(key))
        return str(signed).partition("?")[0]

    async def fetch(self, key: str, path: Path) -> None:
        """Write the object into a file. Raises Answer (MISSING), and then leaves no file."""
        data, size, etag = await self._first(key)
        with path.open("wb") as file:
            await asyncio.to_thread(file.write, data)
            file.flush()
            await self._fetch_rest(key, file, len(data), size, etag)

    async def _first(self, key: str) -> tuple[bytes, int, str]:
        """Return the first part of the object, the size of the whole, and its ETag."""
        span = f"bytes=0-{PART - 1}"
        try:
            data, answer = await self._requests.tried(
                key, lambda client: self._get(client, key, Range=span)
            )
        except Answer as answered:
            if answered.kind is not Kind.EMPTY:
                raise
            return b"", 0, ""
        size = str(answer.get("ContentRange", "")).rpartition("/")[2]
        return data, int(size or len(data)), str(answer["ETag"])

    async def _fetch_rest(self, key: str, file: BinaryIO, begin: int, size: int, etag: str) -> None:
        """Fetch the rest in parallel."""
        room = (await self._requests.session()).room

        async def fetch_part(offset: int) -> None:
            span = f"bytes={offset}-{min(offset + PART, size) - 1}"

            async def stream(client: Any) -> None:
                answer = await client.get_object(**self._at(key), Range=span, IfMatch=etag)
                position = offset
                async with answer["Body"] as body:
                    # Write chunks as they arrive, some 100 KB: gathering 16 MB and writing them in
                    # a thread takes twice the CPU time.
                    while chunk := await body.read(1 << 20):
                        position += os.pwrite(file.fileno(), chunk, position)

            await self._requests.tried(key, stream)

        try:
            async with asyncio.TaskGroup() as group:
                for offset in range(begin, size, PART):
                    await room.acquire()
                    group.create_task(fetch_part(offset)).add_done_callback(
                        lambda _: room.release()
                    )
        except ExceptionGroup as several:
            first = several.exceptions[0]
            if isinstance(first, Answer):
                first = Unavailable(key, "it was deleted or replaced while it was read")
            raise first from None

    async def _get(self, client: Any, key: str, **condition: str) -> tuple[bytes, dict[str, Any]]:
        answer = await client.get_object(**self._at(key), **condition)
        async with answer["Body"] as body:
            return await body.read(), answer

    # ---- listing and deleting

    async def listed(
        self, prefix: str, what: str = "Contents", *, most: int | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """Return what the server lists of the keys that begin with `prefix`, in its order, `most`
        at most. `what`: Contents for the objects, CommonPrefixes for folders.
        """
        wanted = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": most or _PAGE, **options}
        found: list[dict[str, Any]] = []
        while True:
            answer = await self._ask(prefix, "list_objects_v2", **wanted)
            found += answer.get(what, ())
            if not answer.get("IsTruncated") or (most and len(found) >= most):
                return found
            wanted["ContinuationToken"] = answer["NextContinuationToken"]

    async def delete_together(self, keys: list[str]) -> None:
        """Delete the objects, a thousand per request, in any order.

        Objects that a request leaves are deleted again one by one. This also serves servers that do
        not support the request.
        """
        for place in range(0, len(keys), _PAGE):
            page = keys[place : place + _PAGE]
            await self.delete(page if len(page) == 1 else await self._left(page))

    async def _left(self, keys: list[str]) -> list[str]:
        """Delete the objects by one request. Returns those that the server did not delete."""
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = await self._ask(keys[0], "delete_objects", Bucket=self._bucket, Delete=wanted)
        except UserError:
            # The server does not support the request, or does not allow it. If it does not allow
            # deleting at all, the first single delete reports that.
            return keys
        return [str(failed["Key"]) for failed in answer.get("Errors", ())]

    async def delete(self, keys: list[str]) -> None:
        """Delete the objects one by one, in order; a request for many keeps no order."""
        for key in keys:
            with suppress(Answer):  # some servers answer that the object is missing
                await self._ask(key, "delete_object", **self._at(key))

    # ---- requests

    async def _ask(
        self, place: str, name: str, *, seconds: float | None = None, **request: Any
    ) -> dict[str, Any]:
        """Return the answer to the client's request `name` about a key, or a prefix. A try of it
        may take `seconds`; None: as long as the client allows.
        """

        async def once(client: Any) -> dict[str, Any]:
            async with asyncio.timeout(seconds):
                return dict(await getattr(client, name)(**request))

        return await self._requests.tried(place, once)

    def _at(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": key}
