"""A rank from 1 on: it comes in at rank 0's door, trains as it is told there, and ends with it."""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from regrow.search.events import Row
from regrow.tasks import checkpoints, temporary
from regrow.tasks.attempt import PATIENCE_SECONDS
from regrow.tasks.group.circle import BEAT_SECONDS
from regrow.tasks.group.wire import (
    Alive,
    Begin,
    Bye,
    Done,
    Failed,
    Forget,
    Go,
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
    Welcome,
    Wire,
)
from regrow.tasks.messages import Assignment, Host, Job, Records, Reply
from regrow.tasks.overdue import stacks
from regrow.tasks.patience import patiently
from regrow.tasks.ports import Store, StoreError, Unavailable
from regrow.tasks.ranks import Fault, Metrics, Order, World
from regrow.tasks.traces import in_a_line, one_line
from regrow.tasks.training import recorded, train
from regrow.tasks.trial import Trial, TrialEnd

LEFT_EXIT = 77
"""Exit code of a rank whose rank 0 is gone (EX_NOPERM)."""
CLOSE_SECONDS = 2.0
"""How long a part that is on its way may take when nobody waits for it any more."""
_LOG = logging.getLogger("regrow.trial")


class Member:
    """One rank from 1 on, as its Trial sees the group. `leave` ends the process as rank 0 is gone, or silent for `lease` s."""

    def __init__(self, wire: Wire, *, lease: float, leave: Callable[[], None]) -> None:
        self._wire, self._lease, self._leave = wire, lease, leave
        self._changed = threading.Condition()
        self._told: deque[Message] = deque()
        self._over = False
        self._training = threading.get_ident()
        self.world = World()
        self.reply = Reply()
        """What rank 0 was told, by its last order."""
        self.on_part: Callable[[Upload | Forget], None] = lambda _: None

    def start(self) -> None:
        """Begins to listen to rank 0, and to give signs of life."""
        self._wire.limit(self._lease)
        threading.Thread(target=self._hear, name="regrow-rank", daemon=True).start()
        threading.Thread(target=self._beat, name="regrow-beat", daemon=True).start()

    # ---- for its Trial ---------------------------------------------------------------------------------------------

    def gather(self, step: int, metrics: Metrics) -> Metrics:
        """See Ranks."""
        self.say(Reported(step, metrics))
        return metrics

    def ordered(self, decide: Callable[[], Order]) -> Order:
        """See Ranks."""
        told = self.next()
        if isinstance(told, Bye):  # rank 0 has ended meanwhile
            raise TrialEnd
        assert isinstance(told, Ordered), told
        self.reply = Reply(reason=told.order.reason)
        return told.order

    # ---- Reports: rank 0 alone has somebody to tell -----------------------------------------------------------------

    def add(self, row: Row) -> None:
        """See Reports: rank 0 adds it."""

    def flush(self) -> Reply:
        """See Reports."""
        return self.reply

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """See Reports: rank 0 waits with it."""
        yield

    # ---- what they say ---------------------------------------------------------------------------------------------

    def say(self, message: Message) -> None:
        """To rank 0; if that is gone, who hears it ends this process."""
        with suppress(OSError):
            self._wire.send(message)

    def next(self) -> Message:
        """What rank 0 says to the one who trains. It is waited for as long as that lives: it knows by itself when it is late."""
        with self._changed:
            self._changed.wait_for(lambda: self._told)
            return self._told.popleft()

    def wait(self) -> None:
        """Until rank 0 has said its last word."""
        with self._changed:
            self._changed.wait_for(lambda: self._over)

    def _hear(self) -> None:
        with suppress(OSError, Refused):  # TimeoutError is an OSError
            while True:
                match message := self._wire.receive():
                    case Alive():
                        pass
                    case Upload() | Forget():
                        self.on_part(message)
                    case Stacks(why=why):
                        told = stacks(self._training)
                        _LOG.warning("%s. What the threads of rank %d are doing:\n%s", why, self.world.rank, told)
                    case _:
                        with self._changed:
                            self._over = isinstance(message, Bye)
                            self._told.append(message)
                            self._changed.notify_all()
        if not self._over:
            self._leave()

    def _beat(self) -> None:
        while not self._over:
            self.say(Alive())
            time.sleep(BEAT_SECONDS)


class Parts:
    """The snapshots of one rank from 1 on: each is uploaded when rank 0 says so, and rank 0 commits them."""

    def __init__(self, member: Member, store: Store, assignment: Assignment) -> None:
        self._member, self._store, self._lease = member, store, (assignment.trial, assignment.attempt)
        self._folders: dict[int, Path] = {}
        self._absent: dict[int, str] = {}
        self._known: dict[str, int] = {}
        self._ended = False
        self._given_up = threading.Event()
        self._jobs: deque[Upload | Forget] = deque()
        self._changed = threading.Condition()
        member.on_part = self._take
        self._thread = threading.Thread(target=self._run, name="regrow-checkpoints", daemon=True)
        self._thread.start()

    def submit(self, folder: Path, step: int) -> None:
        """See Snapshots. Rank 0, whose orders this one waits for, is the one who waits where they pile up."""
        with self._changed:
            self._folders[step] = folder
            self._changed.notify_all()

    def absent(self, step: int, why: str) -> None:
        """See Snapshots."""
        with self._changed:
            self._absent[step] = why
            self._changed.notify_all()

    def troubled(self, where: str, why: str) -> None:
        """See Snapshots."""
        self._member.say(Trouble(where, why))

    def end(self) -> None:
        """No snapshots come any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """What is left is of no use to anybody; what is on its way is given up."""
        self._given_up.set()
        self.end()
        self._thread.join(CLOSE_SECONDS)
        for folder in self._taken(math.inf):
            shutil.rmtree(folder, ignore_errors=True)

    def _take(self, job: Upload | Forget) -> None:
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
            for older in self._taken(job.step):  # rank 0 had none then
                shutil.rmtree(older, ignore_errors=True)

    def _taken(self, before: float) -> list[Path]:
        """The folders of the steps before this one, which nobody asks for any more."""
        with self._changed:
            return [self._folders.pop(step) for step in list(self._folders) if step < before]

    def _upload(self, step: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: step in self._folders or step in self._absent or self._ended)
            folder, why = self._folders.pop(step, None), self._absent.pop(step, "its training has ended")
        if folder is None:
            self._member.say(Uploaded(step, why=why))
            return
        trial, attempt = self._lease

        def once() -> Uploaded:
            try:
                part = checkpoints.upload(
                    self._store, folder, trial=trial, attempt=attempt, rank=self._member.world.rank, known=self._known
                )
            except Unavailable as error:
                self.troubled("store", error.why)
                raise
            return Uploaded(step, part=part)

        try:
            self._member.say(patiently(once, say=_LOG.info, seconds=math.inf, given_up=self._given_up))
            self.troubled("store", "")
        except Exception as error:  # noqa: BLE001 - whatever it is: rank 0 knows what to do without the part
            self._member.say(Uploaded(step, why=in_a_line(error)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run_member(
    job: Job, assignment: Assignment, store: Store, *, member: Member, host: Host, put: Callable[[Welcome], object],
    records: Records | None = None,
) -> None:
    """Trains as one of the ranks, from its welcome to rank 0's last word. `put` is given torchrun's variables before anything
    of the user's is imported. What the user's code raises is told to rank 0, which ends the attempt by it. `records`: where what
    it logs by itself belongs.
    """
    member.start()
    welcome = member.next()
    if not isinstance(welcome, Welcome):  # rank 0 has ended meanwhile
        return
    member.world = welcome.world
    put(welcome)
    with ExitStack() as closing:
        scratch = Path(tempfile.mkdtemp(prefix=f"{assignment.trial}-", dir=temporary.room()))
        closing.callback(shutil.rmtree, scratch, ignore_errors=True)
        parts = Parts(member, store, assignment)
        closing.callback(parts.close)
        node_id = host.place().node_id
        closing.enter_context(host.listen(lambda why, node: member.say(Noticed(why, node_id if node else ""))))
        try:
            begin = _restored(member, store, scratch / "restored")
            if begin is not None and isinstance(member.next(), Go):
                restored = None if begin.manifest is None else Path(begin.folder)
                trial = Trial(job, assignment, member, parts, restored=restored, restored_step=begin.step, ranks=member)
                said = _trained(job, store, trial, recorded(records, job, assignment, trial, scratch))
                parts.end()
                member.say(said)
        finally:
            host.end_children()
        member.wait()


def _restored(member: Member, store: Store, folder: Path) -> Begin | None:
    """Where it begins, with the checkpoint on this node; None where rank 0 has ended meanwhile."""
    begin = member.next()
    if not isinstance(begin, Begin):
        return None
    if begin.manifest is not None and not begin.folder:
        fetch = partial(checkpoints.restore, store, [begin.manifest], folder)
        try:
            found = patiently(fetch, say=_LOG.warning, seconds=PATIENCE_SECONDS)
        except (StoreError, OSError) as error:
            return _unreadable(member, begin, one_line(str(error)))
        if found.manifest is None:
            return _unreadable(member, begin, found.skipped[0][1])
        begin = Begin(step=begin.step, manifest=begin.manifest, folder=str(folder))
    member.say(Ready(begin.folder))
    return begin


def _unreadable(member: Member, begin: Begin, why: str) -> Begin:
    message = f"rank {member.world.rank}: its checkpoint could not be read: {why}"
    member.say(Failed(Fault(rank=member.world.rank, message=message, cause="infrastructure")))
    return begin


def _trained(job: Job, store: Store, trial: Trial, own: AbstractContextManager[object]) -> Done | Failed:
    """The last word of a rank."""
    failure = train(job, store, trial, own)
    if failure is None:
        return Done(trial.step)
    message = f"rank {trial.world.rank}, at step {trial.at}: {failure.message}"
    return Failed(Fault(rank=trial.world.rank, message=message, trace=failure.trace, cause=failure.cause))
