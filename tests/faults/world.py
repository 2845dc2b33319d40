"""The world in which experiments crash: virtual processes, and a store in which every effect is two
transitions.

A *transition* is a point just before or just after something that others can see: an object created
or deleted, an attempt handed out, a message delivered or answered. (For the log a third lies
between: the write was torn.) Each is counted, named, and may be where a process dies. With a store
in memory the durable state is kept beside it: a crash of everything is that state and nothing else.
No test lives here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from regrow.infra.log.reading import read_events
from regrow.infra.log.segments import Extent, decode, extents
from regrow.search.events import decode as event_of
from regrow.tasks.errors import Interrupted
from regrow.tasks.ports.store import Store
from tests.faults.clock import AWAY_SECONDS, CLOCK, EFFECT_SECONDS
from tests.memory_store import MemoryStore

WAIT = 60.0
"""Seconds after which a process that does not give control back is taken for hung."""
State = dict[str, bytes]


class Killed(Interrupted):
    """The process is dead: unwinds what is left of it, which does nothing any more."""


class Gone(RuntimeError):
    """The same where only exceptions are caught: in a thread of the code under test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """`what` happened or was about to, `when` (before, torn, after), to the object or lease `key`,
    by process `who`.
    """

    number: int
    what: str
    when: str
    key: str
    who: str

    @property
    def kind(self) -> str:
        """Transitions of a kind have this in common."""
        return f"{self.when} {self.what}"

    def __str__(self) -> str:
        return f"#{self.number} {self.kind} ({self.key}) by {self.who}"


class Process:
    """A virtual process. Where it has threads of its own, one of them runs at a time, and only
    while the scheduler waits.

    `yields`: it gives control back at each transition, so that others come in between. `turn`:
    another process of the same attempt, with which it has its turns: one of both runs at a time.
    `at_death` is called once, as it is killed.
    """

    def __init__(
        self,
        name: str,
        *,
        yields: bool = False,
        turn: Process | None = None,
        at_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.yields: bool = yields if turn is None else turn.yields
        self.parked = False
        """Whether it waits for its turn at a transition."""
        self._killed, self._at_death = False, at_death
        self._go: threading.Lock = threading.Lock() if turn is None else turn._go
        self._back: threading.Lock = threading.Lock() if turn is None else turn._back
        if turn is None:  # shut: opened by the other side
            self._go.acquire()
            self._back.acquire()

    @property
    def killed(self) -> bool:
        """Whether it is dead. It never is alive again."""
        return self._killed

    @killed.setter
    def killed(self, killed: bool) -> None:
        before, self._killed = self._killed, killed
        if killed and not before:
            self._at_death()

    def run(self) -> None:
        """For the scheduler: lets it run until it gives control back."""
        self._go.release()
        assert self._back.acquire(timeout=WAIT), f"{self.name} hangs"

    def await_turn(self) -> None:
        """For its first thread: waits for the first `run`."""
        self._go.acquire()

    def end(self) -> None:
        """For its last thread: gives control back for good."""
        self._back.release()

    def transit(self) -> None:
        """At a transition: others may come in between. Raises Gone if it was killed."""
        if self.yields and not self.killed:
            self.wait()
        elif self.killed:
            raise Gone(self.name)

    def wait(self) -> None:
        """Gives control back until the scheduler comes to it again. Raises Gone if it was
        killed.
        """
        if not self.killed:
            self.parked = True
            self._back.release()
            self._go.acquire()
            self.parked = False
        if self.killed:
            raise Gone(self.name)


@dataclass(slots=True)
class World:
    """What outlives a crash (`store`) and what came to pass, over all processes."""

    store: Store
    tape: list[Transition] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    """The durable state at each transition, where the store is in memory."""
    on: Callable[[Transition, Process], None] | None = None
    """Called at each transition: may kill."""
    watch: Callable[[World, str, str], None] | None = None
    """Called after each effect with its verb (create, delete) and key: raises where what holds
    always does not hold.
    """
    keep_states: bool = True
    broken: list[BaseException] = field(default_factory=list)
    """What `watch` raised: the code under test may catch it, but it is not forgotten."""
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        CLOCK.now = AWAY_SECONDS + max((event.t for event in read_events(self.store)), default=0.0)

    def pass_by(
        self, process: Process, what: str, when: str, key: str, torn: bytes | None = None
    ) -> None:
        """Counts a transition. Raises Gone if the process is killed at it."""
        if process.killed:
            raise Gone(process.name)
        with self._counting:
            CLOCK.pass_by(EFFECT_SECONDS)
            here = Transition(
                number=len(self.tape), what=what, when=when, key=key, who=process.name
            )
            self.tape.append(here)
            if self.keep_states and isinstance(self.store, MemoryStore):
                state = dict(self.store._objects)
                self.states.append(state if torn is None else {**state, key: torn})
        if self.on is not None:
            self.on(here, process)
        process.transit()

    def look(self, verb: str, key: str) -> None:
        """After an effect: whether what always holds still does."""
        if self.watch is not None:
            try:
                self.watch(self, verb, key)
            except AssertionError as error:
                self.broken.append(error)


class View:
    """The store as one process sees it. `late`: what it saves in the background takes a while."""

    def __init__(self, world: World, process: Process, *, late: bool = False) -> None:
        self._world, self._process, self.late = world, process, late

    def create(self, key: str, data: bytes | Path) -> None:
        self._alive()
        world, process = self._world, self._process
        what = describe(key, data)
        world.pass_by(process, what, "before", key)
        if key.startswith("log/") and isinstance(data, bytes):
            cuts = torn_at(data)
            # readers of a merged one want all or nothing
            for cut in cuts if object_at(key) == "log segment" else cuts[-1:]:
                try:
                    world.pass_by(process, what, "torn", key, torn=data[:cut])
                except Gone:
                    world.store.create(key, data[:cut])
                    raise
        world.store.create(key, data)
        world.look("create", key)
        world.pass_by(process, what, "after", key)

    def read(self, key: str) -> bytes:
        self._alive()
        return self._world.store.read(key)

    def fetch(self, key: str, path: Path) -> None:
        self._alive()
        self._world.store.fetch(key, path)

    def list(self, prefix: str) -> list[str]:
        self._alive()
        return self._world.store.list(prefix)

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        for key in keys:
            self._alive()
            what = f"{object_at(key)} deleted"
            self._world.pass_by(self._process, what, "before", key)
            self._world.store.delete([key])
            self._world.look("delete", key)
            self._world.pass_by(self._process, what, "after", key)

    def _alive(self) -> None:
        if self._process.killed:
            raise Gone(self._process.name)


def object_at(key: str) -> str:
    """What kind of object a key is of."""
    if key.endswith(".seal"):
        return "log seal"
    if key.startswith("log/"):
        return "log segment" if extents([key])[0].span == 1 else "merged log object"
    return "manifest" if key.startswith("manifests/") else "blob"


def describe(key: str, data: bytes | Path) -> str:
    """What creating an object means; for a segment of the log: which kinds of events it makes
    durable.
    """
    if object_at(key) == "log segment" and isinstance(data, bytes):
        number = int(re.findall(r"\d+", key)[0])
        (segment,) = decode(data, Extent(number, number))
        names = dict.fromkeys(type(event_of(line)).__name__.lower() for line in segment.lines)
        return f"log {'+'.join(names)}"
    return f"{object_at(key)} written"


def torn_at(data: bytes) -> list[int]:
    """Where a torn write may leave off: within the head, within the last line, and within the one
    in the middle.
    """
    ends = [match.end() for match in re.finditer(b"\n", data)]
    cuts = {ends[0] // 2, (ends[-2] + ends[-1]) // 2 if len(ends) > 1 else ends[0] - 1}
    if len(ends) > 2:
        middle = len(ends) // 2
        cuts.add(ends[middle] - 3)
    return sorted(cuts)


def restored(state: State) -> MemoryStore:
    """A store in that state."""
    store = MemoryStore()
    store._objects.update(state)
    return store
