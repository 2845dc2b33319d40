"""Who takes part in an experiment without a fixed head: its agents, and which of them leads.

Everything is an object of the experiment's store, written once:

* `agents/member/<id>`: an agent's record; `.alive-<n>` its sign of life, the next one replaces the
  last; `.left` why it left
* `agents/term/<n>`: the claim of term n, created on the condition that it is not there, as the
  segments of the log are: of several agents only one gets it. `.head` says how the others reach the
  leader's cluster, `.alive-<n>` is a sign of life, `.over` says why the term has ended

No decision of the experiment depends on them: two leaders would be kept apart by the log alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from regrow.infra.stores.keys import CONFIDENTIAL
from regrow.search.events import Status
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports.store import Exists, Missing, Store, created
from regrow.tasks.process import background

AGENT = "REGROW_AGENT"
"""Variable with the id of the agent that runs the driver; unset without agents."""
PREFIX = CONFIDENTIAL
BEAT_SECONDS = 3.0
"""Seconds between two signs of life, which in a bucket cost 0.15 USD a day for each agent."""
LEASE_SECONDS = 10.0
"""Seconds without a new sign of life after which an agent, or a leader, counts as lost."""
FORGET_SECONDS = 600.0
"""Seconds without a sign of life after which a leader deletes an agent's objects. The log keeps who
took part.
"""
_TICK = 0.5
"""Seconds between two looks of a command."""
_KEY = re.compile(
    re.escape(PREFIX)
    + r"(?:(member)/([a-z0-9-]+)|(term)/([0-9]{8}))(?:\.(head|over|left|alive-[0-9]+))?"
)
T = TypeVar("T")


def of_this_driver() -> str:
    """Return the id of the agent that runs this process as its driver; empty: no agent does."""
    return os.environ.get(AGENT, "")


class AgentMember(msgspec.Struct, frozen=True, kw_only=True):
    """One agent, as it was when it joined.

    Attributes:
        id: its name in log, labels and messages.
        host: name of its machine.
        process: its process id there.
        joined: when, seconds since the epoch.
        address: address of its machine, as the others are to reach it.
        port: where it waits for the leader's call, which proves that it can be reached.
        nonce: what the leader has to say there.
        cpus: CPUs of its machine that trials may use.
        market: "spot" or "on-demand"; empty: unknown, which counts as on-demand.
        ends: when its machine or job ends, seconds since the epoch; None: unknown.
        leads: whether it may lead.

    """

    id: str
    host: str
    process: int
    joined: float
    address: str
    port: int
    nonce: str
    cpus: float
    market: str = ""
    ends: float | None = None
    leads: bool = True


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """The claim of one agent to lead. `t` is when, seconds since the epoch."""

    agent: str
    host: str
    t: float


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """How agents join the leader's cluster.

    Attributes:
        address: host:port of Ray's control store.
        token: Ray's token. Whoever may read the state may run code on the cluster.
        versions: what must be the same on all machines.
        tls: Ray's variables for TLS, with the paths of its certificates; empty: without TLS.

    """

    address: str
    token: str
    versions: dict[str, str]
    tls: dict[str, str] = {}


class TermEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a term.

    Attributes:
        why: for people.
        status: how the experiment ended; None: it continues with the next leader.

    """

    why: str
    status: Status | None = None


class AgentLeft(msgspec.Struct, frozen=True, kw_only=True):
    """Why an agent left, and when (seconds since the epoch)."""

    why: str
    t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSeen:
    """An agent or a leader as last seen. `silent`: seconds without a new sign of life."""

    keys: Mapping[str, str]
    """Keys of its objects, by the ends of their names."""
    silent: float

    @property
    def lost(self) -> bool:
        """Whether it was silent for so long that it counts as lost."""
        return self.silent > LEASE_SECONDS


class Agents:
    """The agents of one experiment. `refresh` reads the store; one process keeps one, as silence is
    measured from look to look, with this process's clock alone.
    """

    def __init__(self, store: Store, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._signs: dict[tuple[str, str], tuple[str, float]] = {}
        """The last sign of life of each, and since when it is the last."""
        self._looked, self._away = 0.0, False
        """When the store was last read, and whether it has been out of reach since."""
        self._read: dict[str, bytes] = {}
        self._me: AgentMember | None = None
        self.members: dict[str, LastSeen] = {}
        self.term = 0
        """Number of the newest term; 0: there was none."""
        self.leader: LastSeen | None = None
        """The leader of that term."""

    def refresh(self) -> None:
        """Read who is there. Raises Unavailable."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        blind, now = self._list(found)
        self._signs = {
            one: (sign, self._signs[one][1] + blind)
            if one in self._signs and self._signs[one][0] == sign
            else (sign, now)
            for one, keys in found.items()
            for sign in [keys.get("alive", "")]
        }
        found_now = {
            one: LastSeen(keys=keys, silent=now - self._signs[one][1])
            for one, keys in found.items()
            if "record" in keys
        }
        self.members = {name: seen for (kind, name), seen in found_now.items() if kind == "member"}
        terms = {int(name): seen for (kind, name), seen in found_now.items() if kind == "term"}
        self.term = max(terms, default=0)
        self.leader = terms.get(self.term)
        if self._me is not None and self._me.id not in self.members:
            self._record(self._me)  # it was forgotten, as its machine was away for long

    def _list(self, found: dict[tuple[str, str], dict[str, str]]) -> tuple[float, float]:
        """Read the keys. Returns for how many seconds before the store was out of reach, and when
        it was read. Those are no silence of others, for whom it may have been, too.
        """
        began = self._monotonic()
        try:
            listed = self._store.list(PREFIX)
        except RegrowError:
            self._away = True
            raise
        now = self._monotonic()
        for key in listed:
            if (match := _KEY.fullmatch(key)) is not None:
                kind, name, part = match[1] or match[3], match[2] or match[4], match[5]
                _keep(found.setdefault((kind, name), {}), part or "record", key)
        blind = now - (self._looked if self._away else began)
        if not self._away and blind < BEAT_SECONDS:
            blind = 0.0
        self._looked, self._away = now, False
        return blind, now

    # ---- records

    def member(self, name: str) -> AgentMember | None:
        """Return an agent's record; None if it is gone, or another agent's."""
        found = self._of(self.members.get(name), "record", AgentMember)
        return found if found is not None and found.id == name else None

    def left(self, name: str) -> AgentLeft | None:
        """Return why an agent left; None if it did not say."""
        return self._of(self.members.get(name), "left", AgentLeft)

    @property
    def claim(self) -> Term | None:
        """Who leads; None without a leader."""
        return self._of(self.leader, "record", Term)

    @property
    def head(self) -> Head | None:
        """How to join the leader's cluster; None before it is there."""
        return self._of(self.leader, "head", Head)

    @property
    def over(self) -> TermEnd | None:
        """How the newest term ended; None while it lasts, or if its leader was lost."""
        return self._of(self.leader, "over", TermEnd)

    def living(self) -> list[AgentMember]:
        """Return the agents that are there, in the order in which they joined."""
        found = [
            record
            for name, seen in self.members.items()
            if not seen.lost and "left" not in seen.keys
            if (record := self.member(name)) is not None
        ]
        return sorted(found, key=lambda one: (one.joined, one.id))

    def _of(self, seen: LastSeen | None, part: str, kind: type[T]) -> T | None:
        key = None if seen is None else seen.keys.get(part)
        if key is None:
            return None
        with suppress(Missing, msgspec.MsgspecError):
            if key not in self._read:
                self._read[key] = self._store.read(key)
            return msgspec.json.decode(self._read[key], type=kind)
        return None

    # ---- what an agent does

    @contextmanager
    def present(self, member: AgentMember) -> Iterator[Callable[[str], None]]:
        """Be one of the agents within the block. Yields what to call with the reason of leaving."""
        key = f"{PREFIX}member/{member.id}"
        why = "it ended"

        def because(reason: str) -> None:
            nonlocal why
            why = reason

        self._record(member)
        self._me = member
        try:
            with self._signs_of_life(key):
                yield because
        finally:
            self._me = None
            with suppress(RegrowError):
                left = AgentLeft(why=why, t=time.time())
                self._store.create(f"{key}.left", msgspec.json.encode(left))

    def claimed(self, claim: Term) -> int | None:
        """Claim the term after the newest one. Returns its number; None if another agent has it."""
        number = self.term + 1
        won = created(self._store, _term(number), msgspec.json.encode(claim))
        return number if won else None

    @contextmanager
    def leading(self, number: int) -> Iterator[Callable[[TermEnd], None]]:
        """Give signs of life as the leader of a term within the block. Yields what ends the term
        for the others: without it, they wait for the lease.
        """
        # what earlier terms left: terms stay numbered by the newest
        with suppress(RegrowError):
            keys = self._store.list(f"{PREFIX}term/")
            self._store.delete([key for key in keys if key < _term(number)])
        key = _term(number)

        def end(over: TermEnd) -> None:
            with suppress(Exists):
                self._store.create(f"{key}.over", msgspec.json.encode(over))

        with self._signs_of_life(key):
            yield end

    def publish(self, number: int, head: Head) -> None:
        """Tell the others how to join the cluster of a term."""
        created(self._store, f"{_term(number)}.head", msgspec.json.encode(head))

    def forget_lost(self) -> None:
        """Delete the objects of agents that have been silent for long."""
        for seen in self.members.values():
            if seen.silent > FORGET_SECONDS:
                self._store.delete(seen.keys.values())

    def _record(self, member: AgentMember) -> None:
        created(self._store, f"{PREFIX}member/{member.id}", msgspec.json.encode(member))

    @contextmanager
    def _signs_of_life(self, key: str) -> Iterator[None]:
        count = 0
        signs: list[str] = []
        """Those that may be there, the newest one last."""

        def beat() -> None:
            nonlocal count
            count += 1
            signs.append(f"{key}.alive-{count}")
            with suppress(RegrowError):  # out of reach: the next one may succeed
                with suppress(Exists):  # by an earlier try whose answer was lost
                    self._store.create(signs[-1], b"")
                self._store.delete(old := signs[:-1])
                del signs[: len(old)]

        beat()
        try:
            with background.every(BEAT_SECONDS, beat, name="alive", wait=BEAT_SECONDS):
                yield
        finally:
            with suppress(RegrowError):
                self._store.delete(list(signs))


def living(store: Store) -> list[AgentMember]:
    """Return the agents that are there, for a command that looks once: those that give a new sign
    of life while it waits. It does not wait where all have left.
    """
    agents = Agents(store)
    agents.refresh()
    before = {name: seen.keys.get("alive") for name, seen in agents.members.items()}
    deadline = time.monotonic() + 2 * BEAT_SECONDS
    while agents.living() and time.monotonic() < deadline:
        time.sleep(_TICK)
        agents.refresh()
        found = [
            one
            for one in agents.living()
            if agents.members[one.id].keys.get("alive") not in (None, before.get(one.id))
        ]
        if found:
            return found
    return []


def _keep(keys: dict[str, str], part: str, key: str) -> None:
    """Add a key to those of an object. Of several signs of life "alive" is the newest one: an older
    one stays where it could not be deleted.
    """
    name = part.partition("-")[0]
    if name in keys:
        older, newer = sorted((keys[name], key), key=lambda sign: int(sign.rpartition("-")[2]))
        keys[name], keys[older] = newer, older
    else:
        keys[name] = key


def _term(number: int) -> str:
    return f"{PREFIX}term/{number:08}"
