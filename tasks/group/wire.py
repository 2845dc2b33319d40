"""What ranks say to each other, and how it travels: frames of MessagePack over a TCP connection.

Whoever connects proves that it knows the attempt's key, and so does who answers (HMAC-SHA-256 over both sides' random
challenges), before anything that was sent is decoded. Nothing is encrypted, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import threading
from contextlib import suppress

import msgspec

from regrow.search.events import Place
from regrow.tasks.manifests import Part
from regrow.tasks.ranks import Fault, Metrics, Order, World

MOST_BYTES = 256 << 20
"""Of a frame: a part of a checkpoint with a million files."""
CHALLENGE_BYTES = 32


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first word of a rank from 1 on. `devices`: its own GPUs, as CUDA_VISIBLE_DEVICES has them."""

    rank: int
    place: Place
    devices: str = ""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The answer: who it is, and what torchrun's variables are for it."""

    world: World
    variables: dict[str, str]


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Where all begin: after `step`, from the checkpoint `manifest` (None: from the beginning), which is in `folder` on the
    node of who is told; "": nowhere there yet.
    """

    step: int
    manifest: str | None = None
    folder: str = ""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A rank has its checkpoint, in `folder`."""

    folder: str = ""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """All are ready."""


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """A rank has done a step."""

    step: int
    metrics: Metrics


class Ordered(msgspec.Struct, frozen=True, tag="ordered"):
    """What all do now."""

    order: Order


class Upload(msgspec.Struct, frozen=True, tag="upload"):
    """A rank is to upload its part of the checkpoint at a step."""

    step: int


class Uploaded(msgspec.Struct, frozen=True, tag="uploaded"):
    """It has; or it has no `part`, as `why` says."""

    step: int
    part: Part | None = None
    why: str = ""


class Trouble(msgspec.Struct, frozen=True, tag="trouble"):
    """Why a rank's parts cannot be saved at present; "": they can be again."""

    where: str
    why: str


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Blobs that are in the store no more; None: any may be gone."""

    blobs: list[str] | None


class Noticed(msgspec.Struct, frozen=True, tag="noticed"):
    """A rank's process is about to end, or its whole node `node_id`."""

    why: str
    node_id: str = ""


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Nothing new."""


class Stacks(msgspec.Struct, frozen=True, tag="stacks"):
    """A rank is to write into its log what its threads are doing, as the group waits for it."""

    why: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A rank's trainable has returned, after so many steps."""

    step: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A rank's trainable has not."""

    fault: Fault


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """All is said and saved: the rank may end."""


Message = (
    Hello | Welcome | Begin | Ready | Go | Reported | Ordered | Upload | Uploaded | Trouble | Forget | Noticed | Alive | Stacks
    | Done | Failed | Bye
)


class Refused(Exception):
    """The other side does not know the key, or does not speak as a rank does."""


class Wire:
    """One connection. Any thread may send, one reads. OSError from either means that the other side is gone."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._sending = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)

    def send(self, message: Message) -> None:
        """Waits only while the other side does not read."""
        with self._sending:
            data = self._encoder.encode(message)
            self._connection.sendall(struct.pack("!I", len(data)) + data)

    def receive(self) -> Message:
        """The next message. Raises Refused for what is none."""
        (size,) = struct.unpack("!I", self._exactly(4))
        if size > MOST_BYTES:
            raise Refused(f"a frame of {size:,} bytes")
        try:
            return self._decoder.decode(self._exactly(size))
        except msgspec.DecodeError as error:
            raise Refused(str(error)) from None

    def greet(self, key: bytes, *, first: bool) -> None:
        """Each side proves to the other that it knows the key; `first` is who opened the connection. Raises Refused."""
        own = secrets.token_bytes(CHALLENGE_BYTES)
        self._connection.sendall(own)
        other = self._exactly(CHALLENGE_BYTES)
        mine, theirs = (b"member", b"leader") if first else (b"leader", b"member")
        self._connection.sendall(_proof(key, mine, own, other))
        if not hmac.compare_digest(self._exactly(hashlib.sha256().digest_size), _proof(key, theirs, other, own)):
            raise Refused("the key is not this attempt's")

    def limit(self, seconds: float | None) -> None:
        """How long sending and receiving may take; None: for ever."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """The other side's next read ends."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self._connection.recv(min(count - len(data), 1 << 20))
            if not more:
                raise ConnectionResetError("the other side has closed the connection")
            data += more
        return bytes(data)


def _proof(key: bytes, who: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.new(key, who + own + other, hashlib.sha256).digest()
