"""Ports between the processes that train one trial together. Their communication is in `group/`.

Rank 0 holds the attempt's lease and decides. At each report all ranks wait for its orders, so that
they continue, save and leave at the same step. An attempt of one process is the same without
waiting (`RankGroup` itself).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from regrow.search.events import Cause, Outcome, Place, Row
from regrow.search.measured import Usage
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.ports.messages import Reason, Reply
from regrow.tasks.ports.uploads import CheckpointPart

Metrics = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class World:
    """Position of a process among its trial's workers, in torchrun's terms; ranks count from 0.

    Attributes:
        rank: rank in the trial.
        size: number of workers of the trial.
        local_rank: rank on this node.
        local_size: number of the trial's workers on this node.

    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


class RankCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all ranks do after a report.

    Attributes:
        snapshot: save a snapshot.
        more: wait for one more order.
        over: end.
        reason: why the attempt has to end; "" if it was not asked to.

    """

    snapshot: bool = False
    more: bool = False
    over: bool = False
    reason: Reason = ""


class AttemptVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ends; by default, with an error of the user's code.

    Attributes:
        message: one line. If other ranks train as well, it names the rank.
        trace: traceback of the user's code; empty for none.
        outcome: outcome of the attempt.
        cause: its cause.
        rank: the rank that ends it.

    """

    message: str = ""
    trace: str = ""
    outcome: Outcome = "failed"
    cause: Cause = "error"
    rank: int = 0


class RankFailed(BaseException):
    """Ends rank 0 by a rank's fault. Not an Exception, so that `except Exception` lets it pass."""

    def __init__(self, verdict: AttemptVerdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class GroupBroken(BaseException):
    """A rank is gone or silent, which loses the attempt. Not an Exception, so that `except
    Exception` does not catch it.

    Attributes:
        rank: the rank.
        why: reason in one line.
        silent: whether there is no sign that the rank has ended; it may be stopped or cut off.

    """

    def __init__(self, rank: int, why: str, *, silent: bool = False) -> None:
        super().__init__(rank, why)
        self.rank, self.why, self.silent = rank, why, silent

    def __str__(self) -> str:
        return self.why

    def elsewhere(self, own: Place, others: Sequence[Place]) -> str:
        """Return the rank's node ID if it is not `own`, else "". `others`: from rank 1 on."""
        place = dict(enumerate(others, 1)).get(self.rank, own)
        return place.node_id if place.node_id != own.node_id else ""


class PartMissing(RegrowError):
    """A rank has no part of a checkpoint, which then does not count. The message says which."""


class ReportReceiver(Protocol):
    """Receiver of a trial's reports: `Reporter`, on other ranks a view of rank 0's orders."""

    @property
    def reply(self) -> Reply:
        """Last order to the attempt."""
        ...

    def add(self, row: Row, exact: dict[str, Any] | None = None) -> None:
        """Add a row. `exact`: see Reported."""
        ...

    def flush(self) -> Reply:
        """Send all news and wait for the answer."""
        ...

    def awaited(self) -> AbstractContextManager[object]:
        """Within the block, the training may be waiting for the coordinator or the store."""
        ...


SNAPSHOTS = "snapshots"
"""Place of trouble when the disk for snapshots is full; the training waits meanwhile."""


class Snapshots(Protocol):
    """Receiver of a trial's snapshots: `CheckpointWriter`, or one rank's part of it."""

    @property
    def refused(self) -> UserError | None:
        """Why checkpoints like an earlier one can never be saved; None if they can."""
        ...

    def submit(self, folder: Path, step: int, seconds: float = 0.0) -> None:
        """Take ownership of the folder, which is deleted once saved, at this step. `seconds`: that
        the user's code took to write it.
        """
        ...

    def absent(self, step: int, why: str) -> None:
        """Record that this rank saves nothing at a step at which all ranks were to save."""
        ...

    def troubled(self, where: str, why: str) -> None:
        """Record why checkpoints cannot be saved at `where`; "" once they can be again."""
        ...


class Ranks:
    """The other ranks of a trial, as its `Trial` sees them. This class itself: there are none."""

    world = World()
    """Position of this process."""

    def gather(self, step: int, metrics: Metrics, *, saves: bool) -> tuple[Metrics, bool]:
        """Wait until all ranks have reported a step; return the metrics that count, and whether any
        rank has something to save. Raises RankFailed and GroupBroken.
        """
        return metrics, saves

    def ordered(self, decide: Callable[[], RankCommand]) -> RankCommand:
        """Return the order for all ranks, decided by rank 0. Raises RankFailed, GroupBroken."""
        return decide()


class OtherRanks(Protocol):
    """The other ranks as rank 0's checkpoint writer sees them: each has a part of each."""

    def upload(self, step: int) -> None:
        """Ask all ranks to upload their parts of the checkpoint at a step. Returns immediately."""
        ...

    def parts(self, step: int) -> list[CheckpointPart]:
        """Wait for the parts. Raises PartMissing, GroupBroken, UserError for an impossible one."""
        ...

    def forget(self, blobs: Sequence[str] | None) -> None:
        """Tell the ranks that these blobs may be gone from the store; None: any of them."""
        ...

    def accuse(self, error: UserError) -> None:
        """End the attempt: the parts do not fit together, by the user's fault."""
        ...

    def give_up(self) -> None:
        """Stop waiting for parts."""
        ...

    def on_trouble(self, notify: Callable[[str, str], None]) -> None:
        """Have `notify(where, why)` called when parts cannot be saved ("": they can again)."""
        ...


Leave = Callable[[RankFailed | GroupBroken], None]
"""Ends this process with a RankFailed or a GroupBroken when its training does not react."""


class RankGroup(Ranks):
    """The other ranks as rank 0 sees them, during an attempt. This class: there are none."""

    @property
    def others(self) -> OtherRanks | None:
        """Holders of the other parts of checkpoints; None for none."""
        return None

    @property
    def places(self) -> tuple[Place, ...]:
        """Places of the other ranks, from rank 1 on."""
        return ()

    @property
    def usage(self) -> tuple[Usage, ...]:
        """What the other ranks used of their machines, of those that have ended."""
        return ()

    def begin(self, step: int, manifest: str | None, folder: Path | None) -> None:
        """Start all ranks after `step`, from the checkpoint in `folder`. Raises as `finish`."""

    def finish(self, step: int) -> None:
        """Wait for all ranks to end after this one's last step. Raises RankFailed, GroupBroken."""

    def blamed(self) -> RankFailed | GroupBroken | None:
        """Return another rank's fault or loss, the likely cause; waits a moment for it."""
        return None

    def ended_before(self, step: int) -> str:
        """Name the other ranks that returned before they reported `step`; empty for none."""
        return ""

    def stuck(self, message: str) -> str:
        """Ask the other ranks to log their stacks, as this one hangs, and wait a moment for it.

        Returns `message` with what is known of the other ranks.
        """
        return message

    def watched(
        self, notice: Callable[[str, str], None], leave: Leave, silent: Callable[[], float | None]
    ) -> AbstractContextManager[object]:
        """Watch the other ranks within the block.

        Args:
            notice: called with (why, node_id) when a rank gets a preemption notice; `node_id` is ""
                if only its process ends.
            leave: called if this rank does not react to the fault or loss of another one.
            silent: returns the seconds since the last sign of this rank's training, None while it
                waits for an answer.

        """
        return nullcontext()
