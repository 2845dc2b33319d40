"""A rank from 1 on: connects to rank 0, trains by its orders, and ends with it."""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from regrow.search.events import Row
from regrow.tasks.attempt.attempt import PATIENCE_SECONDS
from regrow.tasks.attempt.stall_watchdog import log_stacks
from regrow.tasks.attempt.training import recorded, train
from regrow.tasks.checkpoint import saving
from regrow.tasks.checkpoint.retry import retry_while_unavailable
from regrow.tasks.errors import UserError
from regrow.tasks.group.peers import BEAT_SECONDS
from regrow.tasks.group.wire import (
    Alive,
    Begin,
    Bye,
    Done,
    Forget,
    Go,
    GreetingRefused,
    Message,
    Noticed,
    Ordered,
    RankFailure,
    RankReady,
    RankReported,
    RankTrouble,
    Stacks,
    Upload,
    Uploaded,
    Welcome,
    Wire,
)
from regrow.tasks.output.traces import in_a_line, one_line
from regrow.tasks.ports.messages import Assignment, Reply, Shared
from regrow.tasks.ports.ranks import AttemptVerdict, Metrics, RankCommand, Ranks, World
from regrow.tasks.ports.store import Store, StoreError, pop_traffic
from regrow.tasks.process import background, temporary
from regrow.tasks.trial.trial import Trial, TrialEnd
from regrow.tasks.trial.usage_meter import UsageMeter

LEFT_EXIT = 77
"""Exit code of a rank whose rank 0 is gone (EX_NOPERM)."""
CLOSE_SECONDS = 2.0
"""Seconds that an upload in progress may take after the parts are no longer needed."""
_LOG = logging.getLogger("regrow.trial")


class RankMember(Ranks):
    """One rank from 1 on, as its Trial sees it. `leave` ends it if rank 0 is gone or silent."""

    def __init__(
        self, wire: Wire, *, lease: float, leave: Callable[[], None], gpus: bool = False
    ) -> None:
        """Create the rank; `start` begins listening. `gpus`: whether it has GPUs."""
        self._wire, self._lease, self._leave = wire, lease, leave
        self._changed = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._over = False
        self._training = threading.get_ident()
        self.world = World()
        self.reply = Reply()
        """Reply to rank 0, as known from its last order."""
        self.usage = UsageMeter(gpus=gpus)
        """Measures what this rank uses of its machine."""
        self.on_part: Callable[[Upload | Forget], None] = lambda _: None

    def start(self) -> None:
        """Start listening to rank 0 and sending signs of life."""
        self._wire.limit(self._lease)
        background.start(self._receive_all, name="rank")
        background.start(self._beat, name="beat")

    # ---- the Ranks port of its Trial

    def gather(self, step: int, metrics: Metrics, *, saves: bool) -> tuple[Metrics, bool]:
        self.send(RankReported(step, metrics, saves))
        return metrics, saves

    def ordered(self, decide: Callable[[], RankCommand]) -> RankCommand:
        message = self.next()
        if isinstance(message, Bye):  # rank 0 has ended meanwhile
            raise TrialEnd
        assert isinstance(message, Ordered), message
        self.reply = Reply(reason=message.order.reason)
        return message.order

    # ---- Reports: only rank 0 reports to the coordinator

    def add(self, row: Row, exact: dict[str, Any] | None = None) -> None:
        """See Reports: rank 0 adds it."""

    def flush(self) -> Reply:
        return self.reply

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """See Reports. Nothing to do: rank 0 waits at the same time."""
        yield

    # ---- sending and receiving

    def send(self, message: Message) -> None:
        """Send a message to rank 0. If it is gone, the receiving thread ends this process."""
        with suppress(OSError):
            self._wire.send(message)

    def next(self) -> Message:
        """Return the next message of rank 0 for the training thread.

        Waits as long as rank 0 lives; rank 0 itself detects when it is late.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._inbox)
            return self._inbox.popleft()

    def wait(self) -> None:
        """Wait for rank 0's last message."""
        with self._changed:
            self._changed.wait_for(lambda: self._over)

    def _receive_all(self) -> None:
        with suppress(OSError, GreetingRefused):  # TimeoutError is an OSError
            while True:
                match message := self._wire.receive():
                    case Alive():
                        pass
                    case Upload() | Forget():
                        self.on_part(message)
                    case Stacks(why=why):
                        log_stacks(why, f"the threads of rank {self.world.rank}", self._training)
                    case _:
                        with self._changed:
                            self._over = isinstance(message, Bye)
                            self._inbox.append(message)
                            self._changed.notify_all()
        if not self._over:
            self._leave()

    def _beat(self) -> None:
        while not self._over:
            self.send(Alive())
            self.usage.sample()
            time.sleep(BEAT_SECONDS)


class PartUploads:
    """Snapshots of one rank from 1 on, uploaded when rank 0 asks for it. Rank 0 commits them."""

    def __init__(self, member: RankMember, store: Store, assignment: Assignment) -> None:
        self._member, self._store = member, store
        self._lease = assignment.trial, assignment.attempt
        self._folders: dict[int, Path] = {}
        self._absent: dict[int, str] = {}
        self._known: dict[str, int] = {}
        self._ended = False
        self._given_up = threading.Event()
        self._jobs: deque[Upload | Forget] = deque()
        self._changed = threading.Condition()
        member.on_part = self._enqueue
        self._thread = background.start(self._run, name="checkpoints")

    @property
    def refused(self) -> None:
        """See Snapshots. Always None: rank 0 reports refusals to all ranks."""

    def submit(self, folder: Path, step: int, seconds: float = 0.0) -> None:
        """See Snapshots. Queues without blocking, as rank 0 applies the back-pressure."""
        with self._changed:
            self._folders[step] = folder
            self._changed.notify_all()

    def absent(self, step: int, why: str) -> None:
        with self._changed:
            self._absent[step] = why
            self._changed.notify_all()

    def troubled(self, where: str, why: str) -> None:
        self._member.send(RankTrouble(where, why))

    def end(self) -> None:
        """Mark that no further snapshots follow."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Delete the remaining snapshots, and give up an upload in progress."""
        self._given_up.set()
        self.end()
        self._thread.join(CLOSE_SECONDS)
        for folder in self._taken(math.inf):
            shutil.rmtree(folder, ignore_errors=True)

    def _enqueue(self, job: Upload | Forget) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._given_up.is_set())
                if self._given_up.is_set():
                    return
                job = self._jobs.popleft()
            if isinstance(job, Forget):
                for blob in list(self._known) if job.blobs is None else job.blobs:
                    self._known.pop(blob, None)
                continue
            self._upload(job.step)
            for older in self._taken(job.step):  # rank 0 had no snapshot at those steps
                shutil.rmtree(older, ignore_errors=True)

    def _taken(self, before: float) -> list[Path]:
        """Remove and return the folders of steps before this one, which rank 0 skips."""
        with self._changed:
            return [self._folders.pop(step) for step in list(self._folders) if step < before]

    def _upload(self, step: int) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: step in self._folders or step in self._absent or self._ended
            )
            folder, why = (
                self._folders.pop(step, None),
                self._absent.pop(step, "its training has ended"),
            )
        if folder is None:
            self._member.send(Uploaded(step, why=why))
            return
        trial, attempt = self._lease

        upload = partial(
            saving.upload,
            self._store,
            folder,
            trial=trial,
            attempt=attempt,
            rank=self._member.world.rank,
            known=self._known,
        )
        try:
            part = retry_while_unavailable(
                upload,
                say=_LOG.info,
                given_up=self._given_up,
                failed=lambda error: self.troubled("store", error.why),
            )
            part = msgspec.structs.replace(part, traffic=pop_traffic(self._store))
            self._member.send(Uploaded(step, part=part))
            self.troubled("store", "")
        except UserError as error:
            self._member.send(
                Uploaded(step, why=one_line(str(error)).removeprefix("checkpoint: "), refused=True)
            )
        except Exception as error:  # noqa: BLE001 - rank 0 handles a missing part, whatever the error
            self._member.send(Uploaded(step, why=in_a_line(error)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run_member(
    shared: Shared,
    assignment: Assignment,
    *,
    member: RankMember,
    put: Callable[[Welcome], object],
) -> None:
    """Train as one of the ranks, from the Welcome to rank 0's last message.

    An exception of the user's code is sent to rank 0, which ends the attempt with it. `put`: called
    with torchrun's variables before any of the user's code is imported.
    """
    host, store = shared.host, shared.store
    member.start()
    welcome = member.next()
    if not isinstance(welcome, Welcome):  # rank 0 has ended meanwhile
        return
    member.world = welcome.world
    put(welcome)
    with ExitStack() as closing:
        scratch = temporary.made(f"{assignment.trial}-")
        closing.callback(shutil.rmtree, scratch, ignore_errors=True)
        parts = PartUploads(member, store, assignment)
        closing.callback(parts.close)
        node_id = host.place().node_id
        closing.enter_context(
            host.listen(lambda why, node: member.send(Noticed(why, node_id if node else "")))
        )
        try:
            begin = _restored(member, store, scratch / "restored")
            if begin is not None and isinstance(member.next(), Go):
                restored = None if begin.manifest is None else Path(begin.folder)
                trial = Trial(
                    shared.job,
                    assignment,
                    member,
                    parts,
                    restored=restored,
                    restored_step=begin.step,
                    ranks=member,
                )
                own = recorded(shared, assignment, trial, scratch)
                ending = _trained(shared, trial, own, member.usage)
                parts.end()
                member.send(ending)
        finally:
            host.end_children()
        member.wait()


def _restored(member: RankMember, store: Store, folder: Path) -> Begin | None:
    """Return where to begin, with the checkpoint on this node; None if rank 0 has ended."""
    begin = member.next()
    if not isinstance(begin, Begin):
        return None
    if begin.manifest is not None and not begin.folder:
        fetch = partial(saving.restore, store, [begin.manifest], folder)
        try:
            found = retry_while_unavailable(fetch, say=_LOG.warning, seconds=PATIENCE_SECONDS)
        except (StoreError, OSError) as error:
            return _unreadable(member, begin, one_line(str(error)))
        if found.manifest is None:
            return _unreadable(member, begin, found.skipped[0][1])
        begin = Begin(step=begin.step, manifest=begin.manifest, folder=str(folder))
    member.send(RankReady(begin.folder))
    return begin


def _unreadable(member: RankMember, begin: Begin, why: str) -> Begin:
    message = f"rank {member.world.rank}: its checkpoint could not be read: {why}"
    member.send(
        RankFailure(AttemptVerdict(rank=member.world.rank, message=message, cause="infrastructure"))
    )
    return begin


def _trained(
    shared: Shared,
    trial: Trial,
    own: AbstractContextManager[object],
    usage: UsageMeter,
) -> Done | RankFailure:
    """Train, and return the last message of this rank."""
    failure = train(shared, trial, own)
    if failure is None:
        return Done(trial.step, usage=usage.summary())
    rank = trial.world.rank
    message = f"rank {rank}, at step {trial.at}: {failure.message}"
    return RankFailure(msgspec.structs.replace(failure, rank=rank, message=message))
