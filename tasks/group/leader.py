"""Rank 0 of a group: waits for the other ranks at each report, and gives the orders."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from regrow.search.durations import in_words
from regrow.search.events import Place
from regrow.search.measured import Usage
from regrow.tasks.attempt.stall_watchdog import log_stacks
from regrow.tasks.errors import UserError
from regrow.tasks.group.peers import Peer, PeerTable
from regrow.tasks.group.wire import Begin, Forget, Go, Hello, Ordered, Stacks, Upload
from regrow.tasks.group.world import welcomes
from regrow.tasks.ports.ranks import (
    AttemptVerdict,
    GroupBroken,
    Leave,
    Metrics,
    PartMissing,
    RankCommand,
    RankFailed,
    RankGroup,
    World,
)
from regrow.tasks.ports.uploads import CheckpointPart
from regrow.tasks.process import background

FORM_SECONDS = 300.0
"""Seconds for all ranks to connect: their processes start, and import the training's libraries."""
ANNOUNCE_SECONDS = 5.0
"""Seconds between two announcements of rank 0's address, until all ranks have connected."""
PATIENCE_SECONDS = 600.0
"""Seconds that other ranks wait for the last one's report, if the specification has no `stall`."""
LEAVE_SECONDS = 5.0
"""Seconds for the training to notice that the attempt is over: it may hang in a call."""
SILENT_SECONDS = 1.0
"""The same after a rank fell silent: all ranks have already waited for it for a whole lease."""
LAST_SECONDS = 30.0
"""Seconds to wait for the parts of a checkpoint that was due when a rank failed."""
STACKS_SECONDS = 1.0
"""Seconds for the other ranks to log their stacks before all end."""


class Leader(RankGroup):
    """Group of rank 0."""

    def __init__(
        self,
        size: int,
        key: bytes,
        *,
        place: Place,
        address: str,
        run: str,
        lease: float,
        stall: float | None,
        mean: bool,
        devices: str = "",
    ) -> None:
        """Create the group; `form` waits for the other ranks.

        Args:
            size: number of ranks.
            key: secret that each rank must know.
            place: place of this rank.
            address: address of this node, for the other ranks.
            run: name of the attempt.
            lease: seconds of silence after which a rank counts as gone.
            stall: see Job; None for PATIENCE_SECONDS, after which the attempt fails with an error.
            mean: whether a step's metrics are the means over all ranks.
            devices: this rank's GPUs, in the form of CUDA_VISIBLE_DEVICES.

        """
        own = Hello(rank=0, place=place, devices=devices)
        self._peers = PeerTable(size, key, own=own, address=address, lease=lease)
        self._changed = self._peers.changed
        self._address, self._run, self._stall, self._mean = address, run, stall, mean
        self._taken = threading.Event()
        """Set once the training knows what ended the attempt."""
        self._given_up = False
        self.world = World(size=size)
        self.variables: dict[str, str] = {}
        """torchrun's variables for this rank."""
        self._silent: Callable[[], float | None] = lambda: None
        self._training: int | None = None
        """Identifier of the training thread, once it trains."""

    # ---- forming the group, and beginning

    @property
    def port(self) -> int:
        """Port at which the other ranks connect."""
        return self._peers.port

    def form(self, announce: Callable[[], object]) -> None:
        """Wait until all ranks have connected. Raises GroupBroken.

        `announce` tells the other ranks this one's address. It is called repeatedly, as an
        announcement is lost if its receiver is restarted.
        """
        peers, deadline = self._peers, time.monotonic() + FORM_SECONDS
        peers.open()
        while peers.wrong is None and (
            missing := set(range(1, peers.size)) - {other.rank for other in peers.all()}
        ):
            if time.monotonic() > deadline:
                raise GroupBroken(
                    min(missing),
                    f"rank {min(missing)} did not come within {in_words(FORM_SECONDS)}",
                )
            announce()
            with self._changed:
                self._changed.wait_for(
                    lambda: peers.wrong is not None or len(peers.all()) == peers.size - 1,
                    ANNOUNCE_SECONDS,
                )
        self._check()
        others = peers.all()
        own, *welcome = welcomes(
            [peers.own, *(other.hello for other in others)], address=self._address, run=self._run
        )
        self.world, self.variables = own.world, own.variables
        for other, welcomed in zip(others, welcome, strict=True):
            peers.send(other, welcomed)

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(other.hello.place for other in self._peers.all())

    @property
    def usage(self) -> tuple[Usage, ...]:
        return tuple(other.usage for other in self._peers.all() if other.usage is not None)

    def begin(self, step: int, manifest: str | None, folder: Path | None) -> None:
        """See RankGroup. On each other node one rank fetches the checkpoint for all ranks there."""
        peers, fetchers = self._peers, dict[str, Peer]()
        here, path = peers.own.node, "" if folder is None else str(folder)
        for other in peers.all():
            # Ranks on this node use its folder; on each other node, the first rank fetches.
            if other.hello.node == here or manifest is None:
                peers.send(other, Begin(step=step, manifest=manifest, folder=path))
            elif fetchers.setdefault(other.hello.node, other) is other:
                peers.send(other, Begin(step=step, manifest=manifest))
        self._until(lambda: all(other.ready is not None for other in fetchers.values()))
        for other in peers.all():
            # The other ranks of these nodes use the folder that the first one fetched.
            if (fetcher := fetchers.get(other.hello.node, other)) is not other:
                peers.send(other, Begin(step=step, manifest=manifest, folder=fetcher.ready or ""))
        self._until(lambda: all(other.ready is not None for other in peers.all()))
        self._training = threading.get_ident()
        peers.broadcast(Go())

    # ---- during training

    def gather(self, step: int, metrics: Metrics, *, saves: bool) -> tuple[Metrics, bool]:
        self._wait(f"report step {step}")
        found = [metrics]
        for other in self._peers.all():
            if not other.reports:
                self._fail(
                    other, f"ended after step {other.done}, where rank 0 reports step {step}"
                )
            report = other.reports.popleft()
            if report.step != step:
                self._fail(other, f"reports step {report.step}, where rank 0 reports step {step}")
            found.append(report.metrics)
            saves = saves or report.saves
        return _mean(found) if self._mean else metrics, saves

    def ordered(self, decide: Callable[[], RankCommand]) -> RankCommand:
        order = decide()
        self._peers.broadcast(Ordered(order))
        return order

    def finish(self, step: int) -> None:
        self._wait(f"end after step {step}")
        for other in self._peers.all():
            if other.reports:
                at = other.reports[0].step
                self._fail(other, f"reports step {at}, where rank 0 has ended after step {step}")

    def _fail(self, other: Peer, message: str) -> None:
        why = f"rank {other.rank} {message}; all ranks report each step"
        self._peers.blame(RankFailed(AttemptVerdict(rank=other.rank, message=why)))
        self._check()

    def blamed(self) -> RankFailed | GroupBroken | None:
        wrong = self._peers.blamed()
        self._taken.set()
        return wrong

    def ended_before(self, step: int) -> str:
        gone = [
            other for other in self._peers.all() if other.done is not None and other.done < step
        ]
        return "; ".join(f"rank {other.rank} had ended after step {other.done}" for other in gone)

    def stuck(self, message: str) -> str:
        others = self._peers.all()
        waiting = [other.rank for other in others if other.waits]
        training = [0, *(other.rank for other in others if not other.waits)]
        for other in others:
            self._peers.send(other, Stacks(message))
        time.sleep(STACKS_SECONDS)
        if not waiting:
            return f"{message}: no rank came to its next report"
        return f"{message}: {_ranks(waiting)} came to the next report, {_ranks(training)} did not"

    @contextmanager
    def watched(
        self, notice: Callable[[str, str], None], leave: Leave, silent: Callable[[], float | None]
    ) -> Iterator[None]:
        self._silent, self._peers.on_beat = silent, self._check_silence
        self._peers.on_notice(notice)
        background.start(self._watch, leave, name="watch")
        try:
            yield
        finally:
            self._taken.set()

    def _watch(self, leave: Leave) -> None:
        peers = self._peers
        with self._changed:
            self._changed.wait_for(lambda: peers.wrong is not None or peers.over.is_set())
        wrong = peers.wrong
        seconds = (
            SILENT_SECONDS if isinstance(wrong, GroupBroken) and wrong.silent else LEAVE_SECONDS
        )
        if wrong is not None and not self._taken.wait(seconds) and not peers.over.is_set():
            leave(wrong)

    def close(self) -> None:
        """End the group: all is sent and saved, and the other ranks may end."""
        self._peers.close()

    # ---- the OtherRanks port of the checkpoint writer

    @property
    def others(self) -> Leader | None:
        return self if self._peers.size > 1 else None

    def on_trouble(self, notify: Callable[[str, str], None]) -> None:
        self._peers.on_trouble = notify

    def upload(self, step: int) -> None:
        self._peers.broadcast(Upload(step))

    def parts(self, step: int) -> list[CheckpointPart]:
        peers, others = self._peers, self._peers.all()
        with self._changed:
            self._changed.wait_for(
                lambda: self._given_up or peers.wrong is not None or _have(others, step)
            )
            if isinstance(peers.wrong, RankFailed):  # work done before the fault counts
                self._changed.wait_for(lambda: self._given_up or _have(others, step), LAST_SECONDS)
            uploads = [other.parts.get(step) for other in others]
            wrong = peers.wrong
        found = list[CheckpointPart]()
        for other, uploaded in zip(others, uploads, strict=True):
            if uploaded is None:
                if isinstance(wrong, RankFailed):
                    raise GroupBroken(wrong.verdict.rank, wrong.verdict.message)
                raise wrong or GroupBroken(0, "nobody waits for it any longer")
            if uploaded.refused:
                raise UserError(f"rank {other.rank}: {uploaded.why}")
            if uploaded.part is None:
                raise PartMissing(f"rank {other.rank} has no part of it: {uploaded.why}")
            found.append(uploaded.part)
        return found

    def forget(self, blobs: Sequence[str] | None) -> None:
        self._peers.broadcast(Forget(None if blobs is None else list(blobs)))

    def accuse(self, error: UserError) -> None:
        self._peers.blame(RankFailed(AttemptVerdict(message=str(error))))

    def give_up(self) -> None:
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    # ---- waiting

    def _check(self) -> None:
        if self._peers.wrong is not None:
            self._taken.set()
            raise self._peers.wrong

    def _until(self, holds: Callable[[], bool]) -> None:
        """Wait during the beginning, as long as it takes. Raises RankFailed and GroupBroken."""
        with self._changed:
            self._changed.wait_for(lambda: self._peers.wrong is not None or holds())
        self._check()

    def _wait(self, what: str) -> None:
        """Wait until all other ranks wait for this one. Raises RankFailed and GroupBroken."""
        patience, others = self._stall or PATIENCE_SECONDS, self._peers.all()
        with self._changed:
            while True:
                complete = self._changed.wait_for(
                    lambda: self._peers.wrong is not None or all(other.waits for other in others),
                    patience,
                )
                late = [other for other in others if not other.waits]
                if complete or not any(other.no_room for other in late):
                    break
        if not complete:
            message = (
                f"{_ranks([other.rank for other in late])} did not {what} within"
                f" {in_words(patience)} after rank 0"
            )
            for other in late:
                self._peers.send(other, Stacks(message))
            time.sleep(STACKS_SECONDS)
            self._blame_late(late[0].rank, message, threading.get_ident())
        self._check()

    def _check_silence(self) -> None:
        """End the attempt if all other ranks have waited for this one too long; not while it waits
        for an answer or the store.
        """
        patience, silent = self._stall or PATIENCE_SECONDS, self._silent()
        others = self._peers.all()
        if self._training is None or silent is None or self._peers.wrong is not None:
            return
        with self._changed:
            steps = [other.reports[0].step for other in others if other.reports]
            if not steps or not all(other.waits for other in others):
                return
            waited = min(silent, time.monotonic() - max(other.since for other in others))
        if waited > patience:
            message = (
                f"rank 0 did not report step {steps[0]} within {in_words(patience)} after all other"
                " ranks"
            )
            self._blame_late(0, message, self._training)

    def _blame_late(self, rank: int, message: str, training: int) -> None:
        log_stacks(message, "the threads of rank 0", training)
        late = AttemptVerdict(rank=rank, message=message)
        if self._stall is not None:
            late = msgspec.structs.replace(late, outcome="lost", cause="stalled")
        self._peers.blame(RankFailed(late))


def _ranks(numbers: Sequence[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"


def _have(others: Sequence[Peer], step: int) -> bool:
    return all(step in other.parts for other in others)


def _mean(found: Sequence[Metrics]) -> Metrics:
    """Return the mean of each metric of rank 0 over the ranks; None if a value is not finite."""
    means: Metrics = {}
    for name in found[0]:
        values = [metrics[name] for metrics in found if name in metrics]
        known = [value for value in values if value is not None]
        mean = (
            math.fsum(value / len(known) for value in known) if len(known) == len(values) else None
        )
        means[name] = mean
    return means
