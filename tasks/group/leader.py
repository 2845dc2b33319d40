"""Rank 0 of a group: opens the door, waits for the others at each report, and says what all do."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from regrow.search.durations import in_words
from regrow.search.events import Place
from regrow.tasks.errors import UserError
from regrow.tasks.group.wire import (
    Alive,
    Begin,
    Bye,
    Done,
    Failed,
    Forget,
    Go,
    Hello,
    Message,
    Noticed,
    Ordered,
    Ready,
    Refused,
    Reported,
    Stacks,
    Trouble,
    Upload,
    Uploaded,
    Wire,
)
from regrow.tasks.group.world import welcomes
from regrow.tasks.manifests import Part
from regrow.tasks.overdue import stacks
from regrow.tasks.ranks import Fault, GroupBroken, Leave, Metrics, Order, PartMissing, RankFailed, World

FORM_SECONDS = 300.0
"""How long all ranks may take to come in: their processes start, and import the training's libraries."""
ANNOUNCE_SECONDS = 5.0
"""Between two times that rank 0 says where it is, until all have come."""
GREET_SECONDS = 10.0
"""How long who connects may take to prove that it knows the key."""
BEAT_SECONDS = 1.0
"""Between two signs of life."""
PATIENCE_SECONDS = 600.0
"""How long all others wait for the last rank's report, where the specification has no `stall`."""
BLAME_SECONDS = 2.0
"""How long an exception of this rank's waits for another rank's, of which it may be the consequence."""
LEAVE_SECONDS = 5.0
"""How long the training may take to notice that the attempt is over: it may hang in a call that waits for a rank that is gone."""
LAST_SECONDS = 30.0
"""How long the parts of a checkpoint may take to come that were due when a rank failed."""
STACKS_SECONDS = 1.0
"""How long the others are given to write what they are doing into the log, before all end."""

_LOG = logging.getLogger("regrow.trial")


@dataclass(slots=True)
class _Member:
    """Another rank, as it was heard of."""

    wire: Wire
    hello: Hello
    heard: float
    reports: deque[Reported] = field(default_factory=deque)
    parts: dict[int, Uploaded] = field(default_factory=dict)
    ready: str | None = None
    done: int | None = None
    """The steps that it did, once its trainable has returned."""


class Leader:
    """The group of rank 0. `address`: of this node, for the others; `lease`: seconds of silence after which a rank counts as
    gone; `stall`: see Job, None for PATIENCE_SECONDS and an error; `mean`: whether a step's metrics are those of all ranks.
    """

    leads = True

    def __init__(
        self, size: int, key: bytes, *, place: Place, address: str, run: str, lease: float, stall: float | None, mean: bool,
        devices: str = "",
    ) -> None:
        self._size, self._key, self._address, self._run = size, key, address, run
        self._lease, self._stall, self._mean = lease, stall, mean
        self._own = Hello(rank=0, place=place, devices=devices)
        self._members: dict[int, _Member] = {}
        self._changed = threading.Condition()
        self._wrong: RankFailed | GroupBroken | None = None
        """What ends the attempt; the first counts."""
        self._taken = threading.Event()
        """The training has been told."""
        self._over = threading.Event()
        self._given_up = False
        self.world = World(size=size)
        self.variables: dict[str, str] = {}
        """torchrun's, for this rank."""
        self._notice: Callable[[str, str], None] = lambda *_: None
        self._troubled: Callable[[str, str], None] = lambda *_: None
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._door = socket.create_server((address, 0), family=family, backlog=size)

    # ---- how it forms, and begins ----------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """Where the others come in."""
        port: int = self._door.getsockname()[1]
        return port

    def form(self, announce: Callable[[], object]) -> None:
        """Waits until all are there. Raises GroupBroken. `announce` tells the others where this one is; it is called now and
        then, as what was told may be lost with who was told it.
        """
        threading.Thread(target=self._let_in, name="regrow-door", daemon=True).start()
        threading.Thread(target=self._beat, name="regrow-beat", daemon=True).start()
        deadline = time.monotonic() + FORM_SECONDS
        while self._wrong is None and (missing := [rank for rank in range(1, self._size) if rank not in self._members]):
            if time.monotonic() > deadline:
                raise GroupBroken(missing[0], f"rank {missing[0]} did not come within {in_words(FORM_SECONDS)}")
            announce()
            with self._changed:
                self._changed.wait_for(lambda: self._wrong is not None or len(self._members) == self._size - 1, ANNOUNCE_SECONDS)
        self._check()
        own, *others = welcomes([self._own, *(m.hello for m in self._all())], address=self._address, run=self._run)
        self.world, self.variables = own.world, own.variables
        for member, welcome in zip(self._all(), others, strict=True):
            self._say(member, welcome)

    @property
    def places(self) -> tuple[Place, ...]:
        """See Group."""
        return tuple(member.hello.place for member in self._all())

    def begin(self, step: int, manifest: str | None, folder: Path | None) -> None:
        """See Group. On each other node one rank fetches the checkpoint, for all that are there."""
        here, fetchers = self._own.place.node_id or self._own.place.node, dict[str, int]()
        there = "" if folder is None else str(folder)
        for rank, member in sorted(self._members.items()):
            node = member.hello.place.node_id or member.hello.place.node
            if node == here or manifest is None:
                self._say(member, Begin(step=step, manifest=manifest, folder=there))
            elif node not in fetchers:
                fetchers[node] = rank
                self._say(member, Begin(step=step, manifest=manifest))
        for rank in fetchers.values():
            self._until(lambda rank=rank: self._members[rank].ready is not None)  # type: ignore[misc]
        for rank, member in sorted(self._members.items()):
            node = member.hello.place.node_id or member.hello.place.node
            if node in fetchers and fetchers[node] != rank:
                self._say(member, Begin(step=step, manifest=manifest, folder=self._members[fetchers[node]].ready or ""))
        self._until(lambda: all(member.ready is not None for member in self._members.values()))
        self._tell(Go())

    # ---- while all train -------------------------------------------------------------------------------------------

    def gather(self, step: int, metrics: Metrics) -> Metrics:
        """See Ranks."""
        self._wait(lambda: all(m.reports or m.done is not None for m in self._members.values()), f"report step {step}")
        found = [metrics]
        for rank, member in sorted(self._members.items()):
            if not member.reports:
                self._fail(rank, f"rank {rank} ended after step {member.done}, where rank 0 reports step {step}")
            report = member.reports.popleft()
            if report.step != step:
                self._fail(rank, f"rank {rank} reports step {report.step}, where rank 0 reports step {step}")
            found.append(report.metrics)
        return _mean(found) if self._mean else metrics

    def ordered(self, decide: Callable[[], Order]) -> Order:
        """See Ranks."""
        order = decide()
        self._tell(Ordered(order))
        return order

    def finish(self, step: int) -> None:
        """See Group."""
        self._wait(lambda: all(m.reports or m.done is not None for m in self._members.values()), f"end after step {step}")
        for rank, member in sorted(self._members.items()):
            if member.reports:
                report = member.reports[0].step
                self._fail(rank, f"rank {rank} reports step {report}, where rank 0 has ended after step {step}")

    def _fail(self, rank: int, message: str) -> None:
        self._say_wrong(RankFailed(Fault(rank=rank, message=f"{message}; all ranks report each step")))
        self._check()

    def blamed(self) -> RankFailed | GroupBroken | None:
        """See Group."""
        with self._changed:
            self._changed.wait_for(lambda: self._wrong is not None, BLAME_SECONDS if self._members else 0.0)
        self._taken.set()
        return self._wrong

    @contextmanager
    def watched(self, notice: Callable[[str, str], None], leave: Leave) -> Iterator[None]:
        """See Group."""
        self._notice = notice
        watcher = threading.Thread(target=self._watch, args=(leave,), name="regrow-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._taken.set()

    def _watch(self, leave: Leave) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._wrong is not None or self._over.is_set())
            wrong = self._wrong
        if wrong is not None and not self._taken.wait(LEAVE_SECONDS) and not self._over.is_set():
            leave(wrong)

    def close(self) -> None:
        """All is said and saved: the others may end."""
        self._over.set()
        self._tell(Bye())
        with self._changed:
            self._changed.notify_all()
        self._door.close()

    # ---- the others of the checkpoints' writer ----------------------------------------------------------------------

    @property
    def others(self) -> Leader | None:
        """See Group."""
        return self if self._size > 1 else None

    def on_trouble(self, told: Callable[[str, str], None]) -> None:
        """`told(where, why)` is called when a rank's parts cannot be saved."""
        self._troubled = told

    def upload(self, step: int) -> None:
        """See Others."""
        self._tell(Upload(step))

    def parts(self, step: int) -> list[Part]:
        """See Others."""
        with self._changed:
            self._changed.wait_for(lambda: self._given_up or self._wrong is not None or self._have(step))
            if isinstance(self._wrong, RankFailed):  # what was done before the fault counts
                self._changed.wait_for(lambda: self._given_up or self._have(step), LAST_SECONDS)
            told = [(rank, member.parts.get(step)) for rank, member in sorted(self._members.items())]
        if any(part is None for _, part in told):
            raise GroupBroken(0, "nobody waits for it any longer") if self._wrong is None else _as_broken(self._wrong)
        for rank, uploaded in told:
            if uploaded is not None and uploaded.part is None:
                raise PartMissing(f"rank {rank} has no part of it: {uploaded.why}")
        return [uploaded.part for _, uploaded in told if uploaded is not None and uploaded.part is not None]

    def _have(self, step: int) -> bool:
        return all(step in member.parts for member in self._members.values())

    def forget(self, blobs: Sequence[str] | None) -> None:
        """See Others."""
        self._tell(Forget(None if blobs is None else list(blobs)))

    def accuse(self, error: UserError) -> None:
        """See Others."""
        self._say_wrong(RankFailed(Fault(rank=0, message=str(error))))

    def give_up(self) -> None:
        """See Others."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    # ---- what they say ---------------------------------------------------------------------------------------------

    def _let_in(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._door.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._hear, args=(Wire(connection),), name="regrow-rank", daemon=True).start()

    def _hear(self, wire: Wire) -> None:
        """All that one rank says, from its first word on."""
        wire.limit(GREET_SECONDS)
        try:
            wire.greet(self._key, first=False)
            hello = wire.receive()
            if not isinstance(hello, Hello) or not 0 < hello.rank < self._size or hello.rank in self._members:
                raise Refused("it is none of the ranks that are expected")
        except (OSError, Refused) as error:
            _LOG.debug("somebody was not let in: %s", error)
            wire.close()
            return
        wire.limit(self._lease)
        member = _Member(wire=wire, hello=hello, heard=time.monotonic())
        with self._changed:
            self._members[hello.rank] = member
            self._changed.notify_all()
        why = f"rank {hello.rank} on {hello.place.node} is gone"
        try:
            while True:
                message = wire.receive()
                member.heard = time.monotonic()
                self._take(hello.rank, member, message)
        except TimeoutError:
            why = f"rank {hello.rank} on {hello.place.node} was silent for {in_words(self._lease)}"
        except (OSError, Refused):
            pass
        if not self._over.is_set():
            self._say_wrong(GroupBroken(hello.rank, why))

    def _take(self, rank: int, member: _Member, message: Message) -> None:
        match message:
            case Noticed(why=why, node_id=node_id):
                self._notice(why, "" if node_id == self._own.place.node_id else node_id)
                return
            case Trouble(where=where, why=why):
                self._troubled(f"{where} of rank {rank}", why)
                return
            case Failed(fault=fault):
                self._say_wrong(RankFailed(fault))
                return
        with self._changed:
            match message:
                case Reported():
                    member.reports.append(message)
                case Uploaded():
                    member.parts = {step: part for step, part in member.parts.items() if step >= message.step - 1}
                    member.parts[message.step] = message
                case Ready(folder=folder):
                    member.ready = folder
                case Done(step=step):
                    member.done = step
                case _:
                    return
            self._changed.notify_all()

    def _beat(self) -> None:
        """Signs of life, for ranks on nodes that were cut off: they end by themselves."""
        while not self._over.wait(BEAT_SECONDS):
            self._tell(Alive())

    def _say(self, member: _Member, message: Message) -> None:
        with suppress(OSError):  # its silence is noticed where it is heard
            member.wire.send(message)

    def _tell(self, message: Message) -> None:
        for member in self._all():
            self._say(member, message)

    def _all(self) -> list[_Member]:
        with self._changed:
            return [self._members[rank] for rank in sorted(self._members)]

    def _say_wrong(self, wrong: RankFailed | GroupBroken) -> None:
        with self._changed:
            self._wrong = self._wrong or wrong
            self._changed.notify_all()

    def _check(self) -> None:
        if self._wrong is not None:
            self._taken.set()
            raise self._wrong

    def _until(self, holds: Callable[[], bool]) -> None:
        """Waits while all begin, which may take as long as fetching does. Raises RankFailed and GroupBroken."""
        with self._changed:
            self._changed.wait_for(lambda: self._wrong is not None or holds())
        self._check()

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        """Waits for the others while all train, but not for ever. Raises RankFailed and GroupBroken."""
        patience = self._stall or PATIENCE_SECONDS
        with self._changed:
            held = self._changed.wait_for(lambda: self._wrong is not None or holds(), patience)
            late = [rank for rank, m in sorted(self._members.items()) if not m.reports and m.done is None]
        if not held:
            who = f"rank {', '.join(map(str, late))}" if len(late) == 1 else f"ranks {', '.join(map(str, late))}"
            message = f"{who} did not {what} within {in_words(patience)} after rank 0"
            for rank in late:
                self._say(self._members[rank], Stacks(message))
            _LOG.warning("trial's rank 0: %s. What its threads are doing:\n%s", message, stacks(threading.get_ident()))
            time.sleep(STACKS_SECONDS)
            stalled = self._stall is not None
            self._say_wrong(RankFailed(Fault(
                rank=late[0], message=message, outcome="lost" if stalled else "failed", cause="stalled" if stalled else "error",
            )))
        self._check()


def _as_broken(wrong: RankFailed | GroupBroken) -> GroupBroken:
    return wrong if isinstance(wrong, GroupBroken) else GroupBroken(wrong.fault.rank, wrong.fault.message)


def _mean(found: Sequence[Metrics]) -> Metrics:
    """Of each metric that rank 0 reports: over the ranks that report it, too. None where one of them is not a finite number."""
    means: Metrics = {}
    for name in found[0]:
        values = [metrics[name] for metrics in found if name in metrics]
        known = [value for value in values if value is not None]
        mean = math.fsum(value / len(known) for value in known) if len(known) == len(values) else None
        means[name] = mean
    return means
