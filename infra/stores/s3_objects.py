"""Creating, reading, listing and deleting objects of S3, as coroutines. Full keys; what they mean is not known here."""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from regrow.infra.stores.s3_failures import Failure, Kind
from regrow.infra.stores.s3_session import PARTS, Answer, Requests
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Unavailable

PART = 16 << 20
"""Bytes of a part; larger ones where an object would have more than 10,000 of them. 8 MB were a quarter slower."""
SLOWEST = 64 << 10
"""Bytes a second below which an upload counts as hanging."""
ROUNDS = 3
"""How often a transfer is begun anew when it was pulled away from under us (an upload that is gone, an object replaced)."""
_WRITER = "regrow-writer"
_PAGE = 1000


class Source(Protocol):
    """What is uploaded."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, /) -> object: ...


class Objects:
    """The objects of a bucket. Raises Answer where S3's answer is no."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._bucket = requests.place.bucket

    # ---- creating --------------------------------------------------------------------------------------------------

    async def create(self, key: str, source: Source, size: int) -> None:
        """Creates the object of what is read until the end; `size` is what to expect. Answers TAKEN."""
        head = await asyncio.to_thread(source.read, PART)
        if len(head) < PART:
            await self.put(key, head)
        else:
            await self._upload(key, source, size, head)

    async def put(self, key: str, data: bytes) -> None:
        """Creates the object by one request."""
        writer = uuid.uuid4().hex

        async def put(client: Any) -> None:
            async with asyncio.timeout(self._requests.patience.read + len(data) / SLOWEST):
                await client.put_object(**self._at(key), Body=data, IfNoneMatch="*", Metadata={_WRITER: writer})

        try:
            await self._requests.tried(key, put)
        except Answer as answer:
            # The answer to an earlier try may have been lost, and the object be ours. This is asked after the first of our
            # tries as well, for aiohttp repeats a PUT by itself when a connection that was kept open turns out dead.
            if answer.kind is not Kind.TAKEN or await self._writer_of(key) != writer:
                raise

    async def _upload(self, key: str, source: Source, size: int, head: bytes) -> None:
        """Parts in parallel, then the request that joins them. `head` was read of the source already."""
        await self._refuse_taken(key)  # before gigabytes are sent in vain
        for _ in range(ROUNDS):
            writer = uuid.uuid4().hex
            upload_id = await self._begin(key, writer)
            upload = {**self._at(key), "UploadId": upload_id}
            joined = False
            try:
                parts = await self._send_parts(key, upload, source, size, head)
                joined = await self._join(key, upload, parts, writer)
            finally:
                if not joined:
                    await self._abort(upload)
            if joined:
                return
            source.seek(0)
            head = b""
        raise Unavailable(key, f"its upload vanished {ROUNDS} times")

    async def _begin(self, key: str, writer: str) -> str:
        async def begin(client: Any) -> str:
            async with asyncio.timeout(self._requests.patience.read):
                answer = await client.create_multipart_upload(**self._at(key), Metadata={_WRITER: writer})
            return str(answer["UploadId"])

        return await self._requests.tried(key, begin)

    async def _send_parts(
        self, key: str, upload: dict[str, Any], source: Source, size: int, head: bytes
    ) -> list[dict[str, Any]]:
        length = PART if size <= 9_000 * PART else -(-size // 9_000)
        room = (await self._requests.session()).room
        sent: list[asyncio.Task[str]] = []

        async def send(number: int, data: bytes) -> str:
            async def part(client: Any) -> str:
                async with asyncio.timeout(self._requests.patience.read + PARTS * len(data) / SLOWEST):
                    answer = await client.upload_part(**upload, PartNumber=number, Body=data)
                return str(answer["ETag"])

            return await self._requests.tried(key, part)

        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await room.acquire()
                    try:
                        data, head = head + await asyncio.to_thread(source.read, length - len(head)), b""
                        if not data:
                            break
                        sent.append(group.create_task(send(len(sent) + 1, data)))
                        sent[-1].add_done_callback(lambda _: room.release())
                    except BaseException:
                        room.release()
                        raise
                room.release()
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        return [{"PartNumber": n, "ETag": task.result()} for n, task in enumerate(sent, 1)]

    async def _join(self, key: str, upload: dict[str, Any], parts: list[dict[str, Any]], writer: str) -> bool:
        """Makes the object of its parts; False if the upload is gone and there is no object."""

        async def join(client: Any) -> None:
            async with asyncio.timeout(10 * self._requests.patience.read):
                await client.complete_multipart_upload(**upload, IfNoneMatch="*", MultipartUpload={"Parts": parts})

        try:
            await self._requests.tried(key, join)
        except Answer as answer:
            # The answer to an earlier try may have been lost here, too; then the upload is gone.
            found = await self._writer_of(key)
            if found == writer:
                return True
            if answer.kind is Kind.TAKEN:
                raise
            if found is not None:
                await self._refuse_taken(key)
            return False
        return True

    async def _abort(self, upload: dict[str, Any]) -> None:
        """Once, and never mind: what is left of an upload costs space until the bucket's rules remove it."""
        with suppress(Exception):
            async with asyncio.timeout(self._requests.patience.connect):
                await (await self._requests.session()).client.abort_multipart_upload(**upload)

    async def _refuse_taken(self, key: str) -> None:
        """Answers TAKEN if the object is there."""
        if await self._writer_of(key) is not None:
            raise Answer(key, Failure(kind=Kind.TAKEN, why="it is there"))

    async def _writer_of(self, key: str) -> str | None:
        """Who created the object: "" if that is not told, None if there is no object."""
        try:
            answer = await self._requests.tried(key, lambda client: client.head_object(**self._at(key)))
        except Answer:
            return None
        return str(answer.get("Metadata", {}).get(_WRITER, ""))

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> bytes:
        """The object's bytes. Answers MISSING."""
        return (await self._requests.tried(key, lambda client: self._get(client, key)))[0]

    async def fetch(self, key: str, path: Path) -> None:
        """Writes the object into a file. Answers MISSING, and leaves no file then."""
        for _ in range(ROUNDS):
            data, size, etag = await self._first(key)
            with path.open("wb") as file:
                await asyncio.to_thread(file.write, data)
                file.flush()
                if size <= len(data) or await self._fetch_rest(key, file, len(data), size, etag):
                    return
            await asyncio.to_thread(path.unlink)
        raise Unavailable(key, f"it was replaced {ROUNDS} times while it was read")

    async def _first(self, key: str) -> tuple[bytes, int, str]:
        """The first part of the object, the size of the whole, and its tag."""
        span = f"bytes=0-{PART - 1}"
        try:
            data, answer = await self._requests.tried(key, lambda client: self._get(client, key, Range=span))
        except Answer as answered:
            if answered.kind is not Kind.EMPTY:
                raise
            return b"", 0, ""
        size = str(answer.get("ContentRange", "")).rpartition("/")[2]
        return data, int(size or len(data)), str(answer["ETag"])

    async def _fetch_rest(self, key: str, file: BinaryIO, begin: int, size: int, etag: str) -> bool:
        """The rest in parallel; False if the object is not the same any more."""
        room = (await self._requests.session()).room

        async def take(offset: int) -> None:
            span = f"bytes={offset}-{min(offset + PART, size) - 1}"

            async def stream(client: Any) -> None:
                answer = await client.get_object(**self._at(key), Range=span, IfMatch=etag)
                position = offset
                async with answer["Body"] as body:
                    # As they come, some 100 KB: gathering 16 MB and writing them in a thread takes twice the CPU time.
                    while chunk := await body.read(1 << 20):
                        position += os.pwrite(file.fileno(), chunk, position)

            await self._requests.tried(key, stream)

        try:
            async with asyncio.TaskGroup() as group:
                for offset in range(begin, size, PART):
                    await room.acquire()
                    group.create_task(take(offset)).add_done_callback(lambda _: room.release())
        except ExceptionGroup as several:
            first = several.exceptions[0]
            if isinstance(first, Answer):
                return False  # gone, or another one
            raise first from None
        return True

    async def _get(self, client: Any, key: str, **condition: str) -> tuple[bytes, dict[str, Any]]:
        answer = await client.get_object(**self._at(key), **condition)
        async with answer["Body"] as body:
            return await body.read(), answer

    # ---- listing and deleting --------------------------------------------------------------------------------------

    async def keys(self, prefix: str, *, most: int | None = None) -> list[str]:
        """The keys that begin with `prefix`, in the server's order; at most `most` of them."""
        return [str(item["Key"]) for item in await self._listed("Contents", Prefix=prefix, most=most)]

    async def folders(self, prefix: str) -> list[str]:
        """What keys that begin with `prefix` have from there to the next slash, which is included."""
        listed = await self._listed("CommonPrefixes", Prefix=prefix, Delimiter="/")
        return [str(item["Prefix"])[len(prefix) :] for item in listed]

    async def _listed(self, what: str, *, most: int | None = None, **options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:

            async def page(client: Any) -> dict[str, Any]:
                return dict(await client.list_objects_v2(Bucket=self._bucket, MaxKeys=most or _PAGE, **options))

            answer = await self._requests.tried(options["Prefix"], page)
            found += answer.get(what, ())
            if not answer.get("IsTruncated") or (most and len(found) >= most):
                return found
            options["ContinuationToken"] = answer["NextContinuationToken"]

    async def size(self, prefix: str) -> tuple[int, int]:
        """How many objects have keys that begin with `prefix`, and their bytes."""
        listed = await self._listed("Contents", Prefix=prefix)
        return len(listed), sum(int(item.get("Size", 0)) for item in listed)

    async def details(self, prefix: str) -> list[tuple[str, str, int, float]]:
        """Key, ETag, bytes and seconds since the epoch of each object whose key begins with `prefix`."""
        return [
            (str(item["Key"]), str(item["ETag"]).strip('"'), int(item.get("Size", 0)), item["LastModified"].timestamp())
            for item in await self._listed("Contents", Prefix=prefix)
        ]

    async def delete_together(self, keys: list[str]) -> None:
        """Deletes the objects, a thousand by a request, in whatever order the server likes.

        What a request leaves behind is asked for once more, one by one: so does a server that knows no such request end well.
        """
        for place in range(0, len(keys), _PAGE):
            await self.delete(await self._left(keys[place : place + _PAGE]))

    async def _left(self, keys: list[str]) -> list[str]:
        """Deletes these by one request; returns those that the server did not delete."""

        async def together(client: Any) -> dict[str, Any]:
            wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            return dict(await client.delete_objects(Bucket=self._bucket, Delete=wanted))

        try:
            answer = await self._requests.tried(keys[0], together)
        except UserError:  # not known there, or not allowed; if deleting as such is not, that is told by the first of them
            return keys
        return [str(failed["Key"]) for failed in answer.get("Errors", ())]

    async def delete(self, keys: list[str]) -> None:
        """Deletes the objects one by one, for a request that takes many keeps no order."""
        for key in keys:
            with suppress(Answer):  # missing: some servers say so
                await self._delete(key)

    async def _delete(self, key: str) -> None:
        await self._requests.tried(key, lambda client: client.delete_object(**self._at(key)))

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": key}
