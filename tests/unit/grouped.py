"""Attempts of several ranks, run here: rank 0 as its worker would run it, each other one in a
thread, over real sockets. No test lives here.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from regrow.search.events import Place
from regrow.tasks.attempt import attempt as attempts
from regrow.tasks.attempt.attempt import run_attempt
from regrow.tasks.group import leader as leading
from regrow.tasks.group import peers
from regrow.tasks.group.leader import Leader
from regrow.tasks.group.member import RankMember, run_member
from regrow.tasks.group.wire import Bye, Hello, Wire
from regrow.tasks.ports.executor import Finished
from regrow.tasks.ports.messages import Assignment
from regrow.tasks.ports.store import Store
from regrow.tasks.trial import reporter
from tests.unit.attempting import Killed
from tests.unit.office import Bench, MakeOffice, Office, offices

KEY = b"k" * 32
HOST = "127.0.0.1"


class Left(BaseException):
    """What stands for the end of rank 0's process, where its training did not react."""


def come_in(port: int, key: bytes = KEY) -> Wire:
    """A connection to rank 0's door that has proved that it knows the key."""
    wire = Wire(socket.create_connection((HOST, port), timeout=10))
    wire.greet(key, first=True)
    return wire


@dataclass(eq=False)
class Rank:
    """A rank from 1 on, in a thread. `left`: its process would have ended, as rank 0 was gone."""

    number: int
    bench: Bench
    store: Store
    devices: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    left: threading.Event = field(default_factory=threading.Event)
    dead: bool = False
    member: RankMember | None = None
    wire: Wire | None = None
    failure: BaseException | None = None
    thread: threading.Thread | None = None

    def die(self) -> None:
        """SIGKILL, as the others see it: nothing of it is heard any more. What it still does is a
        zombie's.
        """
        self.dead = True
        assert self.wire is not None
        self.wire.close()

    def leave(self) -> None:
        """The end of its process: here, its training ends at the next report."""
        assert self.member is not None
        self.left.set()
        with self.member._changed:
            self.member._over = True
            self.member._inbox.append(Bye())
            self.member._changed.notify_all()


class Grouping:
    """Runs attempts of a trainable, which is told who it is by `trial.world`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._module = ModuleType("work_under_test")
        self._module.__spec__ = ModuleSpec("work_under_test", None)
        monkeypatch.setitem(sys.modules, "work_under_test", self._module)
        # put back in another order than taken, by threads
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(peers, "BLAME_SECONDS", 0.5)
        monkeypatch.setattr(leading, "STACKS_SECONDS", 0.1)
        monkeypatch.setattr(peers, "BEAT_SECONDS", 0.1)
        monkeypatch.setattr(attempts, "_leaving", lambda host: self._leave)
        self.lease = 20.0
        self.ranks: dict[int, Rank] = {}
        self.bench = Bench("node-0")
        self.leader: Leader | None = None
        self.ends = threading.Event()
        """Rank 0 has ended: for a rank that hangs until then."""
        self.left = threading.Event()
        """The end of rank 0's process, as it did not react."""

    def __call__(
        self,
        office: Office,
        train: object,
        assignment: Assignment | None = None,
        *,
        nodes: Mapping[int, str] | None = None,
        devices: Mapping[int, str] | None = None,
        stores: Mapping[int, Store] | None = None,
        stall: float | None = None,
    ) -> Finished:
        """An attempt of as many ranks as it is wide, by default that which the driver is to submit.
        `nodes`, `devices`, `stores`: of single ranks. Raises GroupBroken as its worker would. All
        ranks have ended by then.
        """
        vars(self._module).update(train=train)
        assignment, job = assignment or office.submitted(), office.job
        size, (nodes, devices, stores) = (
            assignment.width,
            (nodes or {}, devices or {}, stores or {}),
        )
        self.bench = Bench(nodes.get(0, "node-0"))
        self.ranks = {
            n: Rank(
                n, Bench(nodes.get(n, "node-0")), stores.get(n, office.store), devices.get(n, "")
            )
            for n in range(1, size)
        }
        leader = self.leader = Leader(
            size,
            KEY,
            place=self.bench.place(),
            address=HOST,
            run="run-0-1",
            lease=self.lease,
            stall=stall or job.spec.stall,
            mean=job.spec.resources.reduce == "mean",
            devices=devices.get(0, ""),
        )
        for rank in self.ranks.values():
            rank.thread = threading.Thread(
                target=self._follow,
                args=(office, assignment, rank),
                name=f"rank-{rank.number}",
                daemon=True,
            )
            rank.thread.start()
        try:
            leader.form(lambda: None)
            return run_attempt(
                office.shared(stores.get(0), self.bench),
                assignment,
                task_run="run-0",
                carry_on=lambda: False,
                group=leader,
            )
        finally:
            leader.close()
            self.ends.set()
            hung = [rank.number for rank in self.ranks.values() if not self._joined(rank)]
            for rank in self.ranks.values():
                if rank.wire is not None:
                    rank.wire.close()
            assert not hung, f"ranks {hung} hang"
            failed = [rank.failure for rank in self.ranks.values() if rank.failure is not None]
            if failed:
                raise failed[0]

    @staticmethod
    def _joined(rank: Rank) -> bool:
        assert rank.thread is not None
        rank.thread.join(20)
        return not rank.thread.is_alive()

    def _follow(self, office: Office, assignment: Assignment, rank: Rank) -> None:
        assert self.leader is not None
        try:
            rank.wire = come_in(self.leader.port)
            rank.wire.send(Hello(rank=rank.number, place=rank.bench.place(), devices=rank.devices))
            rank.member = RankMember(rank.wire, lease=self.lease, leave=rank.leave)
            run_member(
                office.shared(rank.store, rank.bench),
                assignment,
                member=rank.member,
                put=lambda welcome: rank.variables.update(welcome.variables),
            )
        except Killed:
            rank.die()
        except BaseException as error:  # noqa: BLE001 - the test's
            rank.failure = error

    def _leave(self) -> None:
        self.left.set()
        raise Left


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Grouping:
    """Runs attempts of any trainable, of several ranks."""
    return Grouping(monkeypatch)


def here(rank: int, node: str = "") -> Hello:
    """The first word of a rank."""
    return Hello(rank=rank, place=Place("node", node))


@pytest.fixture
def make_pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeOffice]:
    """Makes offices of experiments whose trials have two ranks; messages are sent only where an
    attempt must, not by the clock.
    """
    monkeypatch.setattr(reporter, "FLUSH_SECONDS", 60.0)
    usual = {
        "trainable": "work_under_test:train",
        "schedule": "fifo",
        "max_steps": 5,
        "slots": 4,
        "resources": {"workers": 2},
    }
    with offices(**usual) as make:
        yield make
