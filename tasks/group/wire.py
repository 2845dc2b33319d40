"""Messages between ranks, and their transport: frames of MessagePack over a TCP connection.

Both sides prove that they know the attempt's key (HMAC-SHA-256 over both sides' random challenges)
before any message is decoded. Nothing is encrypted, and nothing is ever unpickled.
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
from regrow.search.measured import Usage
from regrow.tasks.ports.ranks import AttemptVerdict, Metrics, RankCommand, World
from regrow.tasks.ports.uploads import CheckpointPart

MOST_BYTES = 256 << 20
"""Size limit of a frame: a part of a checkpoint with a million files."""
CHALLENGE_BYTES = 32


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a rank from 1 on. `devices`: its own GPUs, as in CUDA_VISIBLE_DEVICES."""

    rank: int
    place: Place
    devices: str = ""

    @property
    def node(self) -> str:
        """An identifier that is the same for all ranks on one node."""
        return self.place.node_id or self.place.node


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Answer to Hello: the rank's position, and torchrun's variables for it."""

    world: World
    variables: dict[str, str]


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Where all ranks begin.

    Attributes:
        step: last step that is done.
        manifest: the checkpoint; None for the beginning.
        folder: folder with the checkpoint on the receiver's node; "" if it is not there yet.

    """

    step: int
    manifest: str | None = None
    folder: str = ""


class RankReady(msgspec.Struct, frozen=True, tag="ready"):
    """A rank has its checkpoint in `folder`."""

    folder: str = ""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """All ranks are ready."""


class RankReported(msgspec.Struct, frozen=True, tag="reported"):
    """A rank's report of a step. `saves`: whether it passes a checkpoint function."""

    step: int
    metrics: Metrics
    saves: bool


class Ordered(msgspec.Struct, frozen=True, tag="ordered"):
    """What all ranks do next."""

    order: RankCommand


class Upload(msgspec.Struct, frozen=True, tag="upload"):
    """Asks a rank to upload its part of the checkpoint at a step."""

    step: int


class Uploaded(msgspec.Struct, frozen=True, tag="uploaded"):
    """Answer to Upload.

    Attributes:
        step: step of the checkpoint.
        part: the upload; None if the rank has no part.
        why: why it has none.
        refused: whether such a part can never be saved.

    """

    step: int
    part: CheckpointPart | None = None
    why: str = ""
    refused: bool = False


class RankTrouble(msgspec.Struct, frozen=True, tag="trouble"):
    """Why a rank's parts cannot be saved at present; "" once they can be again."""

    where: str
    why: str


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Blobs that were deleted from the store; None: any blob may have been deleted."""

    blobs: list[str] | None


class Noticed(msgspec.Struct, frozen=True, tag="noticed"):
    """Preemption notice of a rank: its process ends, or its node `node_id` if not empty."""

    why: str
    node_id: str = ""


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Sign of life."""


class Stacks(msgspec.Struct, frozen=True, tag="stacks"):
    """Asks a rank to log the stacks of its threads, because the group waits for it."""

    why: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A rank's trainable has returned after `step` steps. `usage`: what the rank used of its
    machine, None if that was not measured.
    """

    step: int
    usage: Usage | None = None


class RankFailure(msgspec.Struct, frozen=True, tag="failed"):
    """A rank's trainable has failed."""

    verdict: AttemptVerdict


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """All is sent and saved: the rank may end."""


Message = (
    Hello
    | Welcome
    | Begin
    | RankReady
    | Go
    | RankReported
    | Ordered
    | Upload
    | Uploaded
    | RankTrouble
    | Forget
    | Noticed
    | Alive
    | Stacks
    | Done
    | RankFailure
    | Bye
)


class GreetingRefused(Exception):
    """The other side does not know the key, or violates the protocol."""


class Wire:
    """One connection. Any thread may send, one receives. OSError: the other side is gone."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._sending = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)

    def send(self, message: Message) -> None:
        """Send a message. Blocks only while the other side does not read."""
        with self._sending:
            data = self._encoder.encode(message)
            self._connection.sendall(struct.pack("!I", len(data)) + data)

    def receive(self, most: int = MOST_BYTES) -> Message:
        """Return the next message, of at most `most` bytes. Raises GreetingRefused for an invalid
        one.
        """
        (size,) = struct.unpack("!I", self._exactly(4))
        if size > most:
            raise GreetingRefused(f"a frame of {size:,} bytes")
        try:
            return self._decoder.decode(self._exactly(size))
        except msgspec.DecodeError as error:
            raise GreetingRefused(str(error)) from None

    def greet(self, key: bytes, *, first: bool) -> None:
        """Exchange proofs of the key; `first`: this side opened the connection. Raises
        GreetingRefused.
        """
        own = secrets.token_bytes(CHALLENGE_BYTES)
        self._connection.sendall(own)
        other = self._exactly(CHALLENGE_BYTES)
        mine, theirs = (b"member", b"leader") if first else (b"leader", b"member")
        self._connection.sendall(_proof(key, mine, own, other))
        if not hmac.compare_digest(
            self._exactly(hashlib.sha256().digest_size), _proof(key, theirs, other, own)
        ):
            raise GreetingRefused("the key is not this attempt's")

    def limit(self, seconds: float | None) -> None:
        """Set the timeout of sending and receiving, in seconds; None for no timeout."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Close the connection, which ends the other side's next read."""
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
