"""The ranks from 1 on of a worker in a session that is cut: real members in threads, over real
sockets. No test lives here.

One rank of a group has effects at a time, so that runs repeat: rank 0's writer waits where the
others upload. Who of them comes first depends on the step. A rank that is killed has no effects any
more and its connections are closed, which the others have noticed before anything else happens.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from regrow.search.events import Cause, Place
from regrow.tasks.group.leader import Leader
from regrow.tasks.group.member import RankMember, run_member
from regrow.tasks.group.wire import Bye, Hello, Wire
from regrow.tasks.ports.messages import Assignment, Shared
from regrow.tasks.ports.ranks import GroupBroken
from regrow.tasks.ports.uploads import CheckpointPart
from tests.faults.world import WAIT, Process, View, World

KEY = b"k" * 32
ADDRESS = "127.0.0.1"


class Here:
    """A machine that never goes away by itself."""

    def __init__(self, node: str = "node", price: float | None = None) -> None:
        self._node, self._price = node, price

    def place(self) -> Place:
        """See Host."""
        return Place(self._node, price=self._price)

    def end_children(self) -> None:
        """See Host: it starts none."""

    def listen(self, tell: Callable[[str, bool], None]) -> AbstractContextManager[object]:
        """See Host."""
        return nullcontext()


class StillLeader(Leader):
    """The real one, but that nothing else happens while the others upload: before rank 0 does, or
    after it.
    """

    def upload(self, step: int) -> None:
        """See OtherRanks."""
        if step % 2:
            self._uploads(step)

    def parts(self, step: int) -> list[CheckpointPart]:
        """See OtherRanks."""
        if not step % 2:
            self._uploads(step)
        return super().parts(step)

    def _uploads(self, step: int) -> None:
        super().upload(step)
        peers = self._peers
        with self._changed:
            assert self._changed.wait_for(
                lambda: (
                    self._given_up
                    or peers.wrong is not None
                    or all(step in other.parts for other in peers.all())
                ),
                WAIT,
            ), f"nobody says what became of the parts of step {step}"

    def noticed(self) -> bool:
        """Waits until it knows that a rank is gone; False if it does not notice."""
        peers = self._peers
        with self._changed:
            return self._changed.wait_for(
                lambda: peers.wrong is not None or peers.over.is_set(), WAIT
            )

    def hang_up(self) -> None:
        """Its process is gone, as the others see it."""
        self._peers.door.close()
        for other in self._peers.all():
            other.wire.close()


class Rank:
    """A rank from 1 on: its process, and the thread that trains."""

    def __init__(
        self,
        number: int,
        together: Together,
        shared: Shared,
        assignment: Assignment,
        world: World,
        turn: Process,
    ) -> None:
        self.number, self.left = number, False
        """Whether it ended as rank 0 was gone."""
        self.process = Process(f"{turn.name}, rank {number}", turn=turn, at_death=self._die)
        self.failure: BaseException | None = None
        self._together = together
        # where it fetches its checkpoint, or has rank 0's
        self._host = Here(f"node-{number}" if assignment.trial % 2 else "node")
        store = View(world, self.process)
        self._work = dataclasses.replace(shared, store=store, host=self._host), assignment
        self._wire: Wire | None = None
        self._member: RankMember | None = None
        self.thread = threading.Thread(target=self._run, name=self.process.name, daemon=True)

    def _run(self) -> None:
        try:
            self._wire = wire = Wire(
                socket.create_connection((ADDRESS, self._together.leader.port), timeout=WAIT)
            )
            wire.greet(KEY, first=True)
            wire.send(Hello(rank=self.number, place=self._host.place()))
            self._member = member = RankMember(wire, lease=WAIT, leave=self._leave)
            run_member(*self._work, member=member, put=lambda _: None)
        except BaseException as error:  # noqa: BLE001 - told by the scheduler
            if not self.process.killed:
                self.failure = error
        finally:
            if self._wire is not None:
                self._wire.close()

    def _leave(self) -> None:
        """The end of its process, as rank 0 is gone."""
        self.left = True
        self.process.killed = True

    def _die(self) -> None:
        """Its process is gone, as the others see it; what is left of it unwinds."""
        if self._wire is not None:
            self._wire.close()
        if (member := self._member) is not None:
            with member._changed:
                member._over = True
                member._inbox.append(Bye())
                member._changed.notify_all()
        if not self.left:
            self._together.miss()


class Together:
    """The group of a worker while it runs an attempt. `leader` is rank 0's part of it."""

    def __init__(self, shared: Shared, assignment: Assignment, world: World, turn: Process) -> None:
        self._turn, self._world = turn, world
        self.leader = StillLeader(
            assignment.width,
            KEY,
            place=Here().place(),
            address=ADDRESS,
            run="run",
            lease=WAIT,
            stall=shared.job.spec.stall,
            mean=shared.job.spec.resources.reduce == "mean",
        )
        self.ranks = [
            Rank(number, self, shared, assignment, world, turn)
            for number in range(1, assignment.width)
        ]

    def form(self) -> StillLeader:
        """All come in."""
        for rank in self.ranks:
            rank.thread.start()
        self.leader.form(lambda: None)
        return self.leader

    def miss(self) -> None:
        """A rank is gone: rank 0 notices, unless it is gone itself."""
        if not self._turn.killed and not self.leader.noticed():
            self._world.broken.append(AssertionError(f"{self._turn.name} does not miss a rank"))

    def abandon(self) -> None:
        """Rank 0's process is gone: the others notice, and end. One in the middle of an effect ends
        as the whole group is removed.
        """
        self.leader.hang_up()
        for rank in self.ranks:
            if rank.process.parked:
                rank.process.killed = True

    def end(self) -> None:
        """Rank 0 has said its last word, if it lives. Raises what a rank raised."""
        self.leader.close()
        for rank in self.ranks:
            rank.thread.join(WAIT)
            assert not rank.thread.is_alive(), f"{rank.process.name} hangs"
            if rank.failure is not None:
                raise rank.failure
            alone = self._turn.killed and not rank.process.killed
            assert not alone, f"{rank.process.name} continued to its end, although rank 0 was gone"

    def lost(self, broken: GroupBroken) -> tuple[Cause, str]:
        """What the driver makes of what rank 0 says at its end, and of what Ray says of the
        others.
        """
        return asyncio.run(_lost(broken, [rank.process.killed for rank in self.ranks]))


async def _lost(broken: GroupBroken, killed: Sequence[bool]) -> tuple[Cause, str]:
    import ray.exceptions  # a second, for those who need it

    from regrow.infra.ray.executor import RayExecutor
    from regrow.infra.ray.groups import Broken, Grouped
    from regrow.tasks.ports.executor import AttemptLost

    loop = asyncio.get_running_loop()
    refs = [loop.create_future() for _ in range(1 + len(killed))]
    refs[0].set_result(
        Broken(rank=broken.rank, why=broken.why, elsewhere=False, silent=broken.silent)
    )
    for ref, dead in zip(refs[1:], killed, strict=True):
        if dead:
            ref.set_exception(ray.exceptions.WorkerCrashedError())
        else:
            ref.set_result(None)
    group: Any = None
    try:
        nothing: Any = None
        await RayExecutor(nothing, nothing).outcome(Grouped(group=group, refs=refs, removed=True))
    except AttemptLost as lost:
        return lost.cause, lost.message
    raise AssertionError(f"nobody misses rank {broken.rank}")
