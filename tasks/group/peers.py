"""The other ranks as rank 0 knows them: messages, signs of life, failures. No decisions."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from regrow.search.durations import in_words
from regrow.search.measured import Usage
from regrow.tasks.group.wire import (
    Alive,
    Bye,
    Done,
    GreetingRefused,
    Hello,
    Message,
    Noticed,
    RankFailure,
    RankReady,
    RankReported,
    RankTrouble,
    Uploaded,
    Wire,
)
from regrow.tasks.ports.ranks import SNAPSHOTS, GroupBroken, RankFailed
from regrow.tasks.process import background
from regrow.tasks.process.connecting import Connecting

HELLO_BYTES = 1 << 16
"""Size limit of a rank's first message."""
BEAT_SECONDS = 1.0
"""Seconds between two signs of life."""
BLAME_SECONDS = 2.0
"""Seconds that a rank's failure waits for another rank's, or its loss, which may have caused it."""
_LOG = logging.getLogger("regrow.trial")


@dataclass(slots=True)
class Peer:
    """What rank 0 knows of another rank."""

    rank: int
    wire: Wire
    hello: Hello
    reports: deque[RankReported] = field(default_factory=deque)
    since: float = 0.0
    """Time of the last report, on the monotonic clock."""
    no_room: bool = False
    """Whether the rank waits for space on its disk."""
    parts: dict[int, Uploaded] = field(default_factory=dict)
    ready: str | None = None
    done: int | None = None
    """Steps done, once its trainable has returned; None before."""
    usage: Usage | None = None
    """What it used of its machine, once its trainable has returned; None if not measured."""

    @property
    def waits(self) -> bool:
        """Whether the rank waits for rank 0."""
        return bool(self.reports) or self.done is not None


class PeerTable:
    """All ranks from 1 on that have connected. `changed` guards their state and is notified."""

    def __init__(self, size: int, key: bytes, *, own: Hello, address: str, lease: float) -> None:
        self.size, self.own = size, own
        self.changed = threading.Condition()
        self.wrong: RankFailed | GroupBroken | None = None
        """What ends the attempt; the first one counts."""
        self.over = threading.Event()
        self.on_beat: Callable[[], None] = lambda: None
        """Called with each sign of life."""
        self.on_trouble: Callable[[str, str], None] = lambda *_: None
        """Called with (where, why) when a rank's parts cannot be saved ("" once they can be again).
        """
        self._lease = lease
        self._members: dict[int, Peer] = {}
        self._suspect: RankFailed | None = None
        """A rank's failure that may have been caused by the loss of another rank."""
        self._notice: Callable[[str, str], None] | None = None
        self._noticed: list[tuple[str, str]] = []
        """Notices that arrived before `on_notice` set their receiver."""
        self._key = key
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.door = Connecting(self._listener, self._greet)

    @property
    def port(self) -> int:
        """Port at which the other ranks connect."""
        port: int = self._listener.getsockname()[1]
        return port

    def open(self) -> None:
        """Accept the other ranks. A connection that sends nothing blocks no other."""
        background.start(self.door.accept, name="door")
        background.start(self._beat, name="beat")

    def close(self) -> None:
        """End the group: all is sent, and the other ranks may end."""
        self.over.set()
        self.broadcast(Bye())
        with self.changed:
            self.changed.notify_all()
        self.door.close()

    def all(self) -> list[Peer]:
        """Return the connected ranks, by rank."""
        with self.changed:
            return [self._members[rank] for rank in sorted(self._members)]

    def send(self, other: Peer, message: Message) -> None:
        """Send a message to one rank. A lost connection is detected by the thread that receives."""
        with suppress(OSError):
            other.wire.send(message)

    def broadcast(self, message: Message) -> None:
        """Send a message to all ranks."""
        for other in self.all():
            self.send(other, message)

    def on_notice(self, notice: Callable[[str, str], None]) -> None:
        """Have `notice(why, node_id)` called for ranks' preemption notices, early ones too."""
        with self.changed:
            self._notice, before = notice, self._noticed
        for early in before:
            notice(*early)

    def blame(self, wrong: RankFailed | GroupBroken) -> None:
        """End the attempt because of `wrong`, unless it ends already."""
        with self.changed:
            if self.wrong is None and self._suspect is not None and isinstance(wrong, GroupBroken):
                _LOG.warning("%s", self._suspect.verdict.message)
                wrong = self._suspect if self._suspect.verdict.rank == wrong.rank else wrong
            self.wrong = self.wrong or wrong
            self.changed.notify_all()

    def blamed(self) -> RankFailed | GroupBroken | None:
        """Return what ends the attempt if another rank caused it; waits a moment for it."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.wrong is not None, BLAME_SECONDS if self._members else 0.0
            )
            if self.wrong is None and self._suspect is not None:
                self.blame(self._suspect)
            return self.wrong

    # ---- receiving messages

    def _greet(self, connection: socket.socket, proved: Callable[[], None]) -> None:
        """Hear a rank, which first proves that it knows the key, and introduces itself."""
        try:
            wire = Wire(connection)
            wire.greet(self._key, first=False)
            hello = wire.receive(most=HELLO_BYTES)
            if not isinstance(hello, Hello):
                raise GreetingRefused("it does not say who it is")
            proved()
            with connection:
                self._receive_all(wire, hello)
        except (OSError, GreetingRefused) as error:
            _LOG.debug("a connection was not let in: %s", error)

    def _receive_all(self, wire: Wire, hello: Hello) -> None:
        """Receive all messages of one rank after its Hello."""
        wire.limit(self._lease)
        other = Peer(rank=hello.rank, wire=wire, hello=hello)
        with self.changed:
            if not 0 < hello.rank < self.size or hello.rank in self._members:
                raise GreetingRefused(f"rank {hello.rank} is not expected")
            self._members[hello.rank] = other
            self.changed.notify_all()
        why, silent = f"rank {hello.rank} on {hello.place.node} is gone", False
        try:
            while True:
                self._receive(other, wire.receive())
        except TimeoutError:
            why, silent = (
                f"rank {hello.rank} on {hello.place.node} was silent for {in_words(self._lease)}",
                True,
            )
        except (OSError, GreetingRefused):
            pass
        if not self.over.is_set():
            self.blame(GroupBroken(hello.rank, why, silent=silent))

    def _receive(self, other: Peer, message: Message) -> None:
        match message:
            case Noticed(why=why, node_id=node_id):
                self._receive_notice(why, "" if node_id == self.own.place.node_id else node_id)
                return
            case RankTrouble(where=where, why=why):
                other.no_room = bool(why) if where == SNAPSHOTS else other.no_room
                self.on_trouble(f"{where} of rank {other.rank}", why)
                return
        with self.changed:
            match message:
                case RankReported():
                    other.reports.append(message)
                    other.since = time.monotonic()
                case Uploaded():
                    other.parts = {
                        step: part for step, part in other.parts.items() if step >= message.step - 1
                    }
                    other.parts[message.step] = message
                case RankReady(folder=folder):
                    other.ready = folder
                case Done(step=step, usage=usage):
                    other.done, other.usage = step, usage
                case RankFailure(verdict=verdict):
                    self._suspect = self._suspect or RankFailed(verdict)
                    background.start(self.blamed, name="blame")
                case _:
                    return
            self.changed.notify_all()

    def _receive_notice(self, why: str, node_id: str) -> None:
        with self.changed:
            if (notice := self._notice) is None:
                self._noticed.append((why, node_id))
        if notice is not None:
            notice(why, node_id)

    def _beat(self) -> None:
        """Send signs of life: ranks on nodes that are cut off end when these stop."""
        while not self.over.wait(BEAT_SECONDS):
            self.broadcast(Alive())
            self.on_beat()
