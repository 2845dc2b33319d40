"""The processes that train one trial together, as each of them sees the others. How they speak is in `group/`.

One of them, rank 0, holds the attempt's lease and decides; at each report all wait for its orders, so that they go on, save and
leave at the same step. An attempt of one process is the same with nobody to wait for (`Alone`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from regrow.search.events import Cause, Outcome, Place, Row
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.manifests import Part
from regrow.tasks.messages import Reason, Reply

Metrics = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class World:
    """Which of its trial's workers a process is, in torchrun's words: `rank` of `size`; `local_rank` of the `local_size` that
    are on its node. All count from 0; a trial of one worker is World(0, 1, 0, 1).
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all ranks do after a report: save a `snapshot`, wait for one `more` order, end as it is `over` (for `reason`, "" where
    nobody told the attempt to).
    """

    snapshot: bool = False
    more: bool = False
    over: bool = False
    reason: Reason = ""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank did wrong, by which the attempt ends: an outcome and its cause, one line that names the rank, a traceback of
    the user's code where there is one.
    """

    rank: int
    message: str
    trace: str = ""
    outcome: Outcome = "failed"
    cause: Cause = "error"


class RankFailed(BaseException):
    """Ends rank 0, as the attempt ends by the fault of a rank. Not an Exception, so that `except Exception` lets it pass."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class GroupBroken(BaseException):
    """A rank is gone, or silent: the attempt is lost with it. Not an Exception, so that `except Exception` lets it pass.

    `rank` is the one, `why` one line; `silent`: nothing says that it has ended, it may be stopped, or cut off.
    """

    def __init__(self, rank: int, why: str, *, silent: bool = False) -> None:
        super().__init__(rank, why)
        self.rank, self.why, self.silent = rank, why, silent

    def __str__(self) -> str:
        return self.why

    def elsewhere(self, own: Place, others: Sequence[Place]) -> str:
        """The node of the rank, if that is another one than `own`; else empty. `others`: from rank 1 on."""
        there = dict(enumerate(others, 1)).get(self.rank, own)
        return there.node_id if there.node_id != own.node_id else ""


class PartMissing(RegrowError):
    """A rank has no part of a checkpoint: it counts for none. The message says which, and why."""


class Reports(Protocol):
    """Where a trial's reports go, and what came back. A Reporter, or nothing but rank 0's orders."""

    @property
    def reply(self) -> Reply:
        """The last order to the attempt."""
        ...

    def add(self, row: Row) -> None:
        """Takes a row."""
        ...

    def flush(self) -> Reply:
        """Sends all news and waits for the answer."""
        ...

    def awaited(self) -> AbstractContextManager[object]:
        """Within the block, the training may wait for us."""
        ...


SNAPSHOTS = "snapshots"
"""Where there is trouble, if the disk is full on which snapshots are made: then the training waits."""


class Snapshots(Protocol):
    """Where a trial's snapshots go. A CheckpointWriter, or one rank's part of it."""

    def submit(self, folder: Path, step: int) -> None:
        """Takes the folder, which it deletes when it is saved. `step` is that of the checkpoint."""
        ...

    def absent(self, step: int, why: str) -> None:
        """Nothing is saved by this rank at a step at which all were to save."""
        ...

    def troubled(self, where: str, why: str) -> None:
        """Checkpoints cannot be saved ("": they can be again) because of what is `where`."""
        ...


class Ranks(Protocol):
    """The others of a trial, for its Trial."""

    @property
    def world(self) -> World:
        """Who this one is."""
        ...

    def gather(self, step: int, metrics: Metrics) -> Metrics:
        """Waits until all have reported a step; the metrics that count. Raises RankFailed and GroupBroken."""
        ...

    def ordered(self, decide: Callable[[], Order]) -> Order:
        """What all do: decided by the one who leads, told to the others. Raises RankFailed and GroupBroken."""
        ...


class Others(Protocol):
    """The other ranks of rank 0, for the writer of the checkpoints: each has a part of every one."""

    def upload(self, step: int) -> None:
        """Has all upload their parts of the checkpoint at a step. Returns at once."""
        ...

    def parts(self, step: int) -> list[Part]:
        """Waits for them. Raises PartMissing, or GroupBroken."""
        ...

    def forget(self, blobs: Sequence[str] | None) -> None:
        """These blobs may be in the store no more; None: any."""
        ...

    def accuse(self, error: UserError) -> None:
        """The parts do not go together, by the user's fault: the attempt ends."""
        ...

    def give_up(self) -> None:
        """Nobody waits for parts any longer."""
        ...

    def on_trouble(self, told: Callable[[str, str], None]) -> None:
        """`told(where, why)` is called when their parts cannot be saved at present ("": when they can be again)."""
        ...


Leave = Callable[[RankFailed | GroupBroken], None]
"""Ends this process by a RankFailed or a GroupBroken, as its training does not react."""


class Group(Ranks, Protocol):
    """The others of rank 0, for the whole of an attempt."""

    @property
    def others(self) -> Others | None:
        """Who has the other parts of checkpoints; None where nobody does."""
        ...

    @property
    def places(self) -> tuple[Place, ...]:
        """Where they are, from rank 1 on."""
        ...

    def begin(self, step: int, manifest: str | None, folder: Path | None) -> None:
        """Has all begin together after `step`, from a checkpoint that is in `folder` here. Raises RankFailed and GroupBroken."""
        ...

    def finish(self, step: int) -> None:
        """Waits for the end of all, after this one's, which did `step` steps. Raises RankFailed and GroupBroken."""
        ...

    def blamed(self) -> RankFailed | GroupBroken | None:
        """What another rank did, or what became of it, that may have made this one fail; waits a moment for it."""
        ...

    def ended_before(self, step: int) -> str:
        """Which other ranks' trainables have returned before they reported `step`, for people; empty for none."""
        ...

    def stuck(self, message: str) -> str:
        """Has the others write what they are doing into the log, as this one does nothing, and waits a moment for it; returns
        `message` with what is known of them.
        """
        ...

    def watched(
        self, notice: Callable[[str, str], None], leave: Leave, silent: Callable[[], float | None]
    ) -> AbstractContextManager[object]:
        """Within the block, `notice(why, node_id)` is called for what ranks hear of their end (`node_id` "": of their process's
        alone), and `leave` if this one does not react when another one is at fault, or gone. `silent`: seconds since this one's
        training said anything, None while it waits for an answer.
        """
        ...


class Alone:
    """The group of a process that trains by itself."""

    world = World()
    others = None
    places: tuple[Place, ...] = ()

    def gather(self, step: int, metrics: Metrics) -> Metrics:
        """See Ranks."""
        return metrics

    def ordered(self, decide: Callable[[], Order]) -> Order:
        """See Ranks."""
        return decide()

    def begin(self, step: int, manifest: str | None, folder: Path | None) -> None:
        """See Group."""

    def finish(self, step: int) -> None:
        """See Group."""

    def blamed(self) -> None:
        """See Group."""

    def ended_before(self, step: int) -> str:
        """See Group."""
        return ""

    def stuck(self, message: str) -> str:
        """See Group."""
        return message

    def watched(
        self, notice: Callable[[str, str], None], leave: Leave, silent: Callable[[], float | None]
    ) -> AbstractContextManager[object]:
        """See Group."""
        return nullcontext()
