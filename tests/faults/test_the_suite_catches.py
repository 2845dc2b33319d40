"""The suite goes red where regrow is broken: each breakage is made on purpose, and the cuts that
must notice it do.

A cut that notices a breakage raises; one that does not is named in the summary too. The control is
regrow as it is.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from regrow.flows.coordinator.ledger import Ledger
from regrow.infra.log.log import Log, Superseded
from regrow.infra.log.segments import Segment
from regrow.search.events import Began, Closing
from regrow.search.history import Attempt, History, fold
from regrow.search.planning import limits
from regrow.tasks.checkpoint import saving, writer
from regrow.tasks.group.leader import Leader
from regrow.tasks.group.member import RankMember
from regrow.tasks.group.wire import Message, Ordered
from regrow.tasks.ports.ranks import GroupBroken, RankCommand
from regrow.tasks.ports.store import Store
from regrow.tasks.ports.uploads import CheckpointPart
from tests.faults import cuts, tally
from tests.faults.scenarios import SEED, go_on, uncut, whole
from tests.faults.world import Transition, restored

Breakage = Callable[[], AbstractContextManager[object]]
ONE_SLOT, SLOTS, RANKS = "short trials in a row", "fifo, random, 2 slots", "two ranks"
LIMITED = "the money ends in the middle"


# ---- the breakages


def acts_before_it_is_written() -> AbstractContextManager[object]:
    """Nobody waits for the log."""

    async def committed(ledger: Ledger, *, urgent: bool = True) -> None:
        ledger._check()

    return patch.object(Ledger, "committed", committed)


def accepts_a_lease_that_is_not_held() -> AbstractContextManager[object]:
    """Whoever ran an attempt once may report for it."""

    def lease(self: History, trial: int, attempt: int) -> Attempt | None:
        attempts = self.trials[trial].attempts if 0 <= trial < len(self.trials) else []
        return attempts[attempt - 1] if 1 <= attempt <= len(attempts) else None

    return patch.object(History, "lease", lease)


def writes_on_after_it_was_superseded() -> AbstractContextManager[object]:
    """A writer whose segment is taken takes the next number."""
    create = Log._create

    def insist(self: Log, lines: Sequence[bytes], claim: bool) -> tuple[int, Segment]:
        while True:
            try:
                return create(self, lines, claim)
            except Superseded:
                self._superseded = self._unsettled = None
                self._last += 1

    return patch.object(Log, "_create", insist)


class _ManifestFirst:
    """A store that puts blobs off until the manifest is there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._later: list[tuple[str, bytes | Path]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, key: str, data: bytes | Path) -> None:
        if not key.startswith("manifests/"):
            self._later.append((key, data))
            return
        for each in [(key, data), *self._later]:
            self._store.create(*each)


def commits_the_manifest_before_the_blobs() -> AbstractContextManager[object]:
    """The commit comes first."""
    save = saving.save

    def wrongly(store: Store, *args: Any, **kwargs: Any) -> saving.SavedCheckpoint:
        wrong: Any = _ManifestFirst(store)
        return save(wrong, *args, **kwargs)

    return patch.object(writer, "save", wrongly)


def keeps_the_rows_beyond_the_restored_step() -> AbstractContextManager[object]:
    """No rewind: what a lost attempt reported stays, and what is done again is not taken."""

    def began(self: History, event: Began) -> None:
        step = self.trials[event.trial].step
        History._began(self, msgspec.structs.replace(event, restored=step))

    return patch.dict(fold._HANDLERS, {Began: began})


def forgets_where_a_torn_segment_was_cut() -> AbstractContextManager[object]:
    """A driver that comes back does not say how much of the last segment counts."""
    create = Log._create

    def silent(self: Log, lines: Sequence[bytes], claim: bool) -> tuple[int, Segment]:
        self.cut = None
        return create(self, lines, claim)

    return patch.object(Log, "_create", silent)


class _Afterwards:
    """A store that puts off what it is given until its `late`, the next time that it is asked for
    anything.
    """

    def __init__(self, store: Store, late: list[tuple[str, bytes]]) -> None:
        self._store, self._late = store, late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, key: str, data: bytes | Path) -> None:
        self._late.append((key, data if isinstance(data, bytes) else data.read_bytes()))


def commits_before_the_part_of_another_rank_is_durable() -> AbstractContextManager[object]:
    """A rank says that it has uploaded its part, and does so with the next one."""
    upload, late = saving.upload, dict[Store, list[tuple[str, bytes]]]()

    def wrongly(store: Store, folder: Path, *, rank: int = 0, **kwargs: Any) -> CheckpointPart:
        if rank == 0:
            return upload(store, folder, **kwargs)
        due, late[store] = late.get(store, []), []
        for each in due:
            store.create(*each)
        wrong: Any = _Afterwards(store, late[store])
        return upload(wrong, folder, rank=rank, **kwargs)

    return patch.object(saving, "upload", wrongly)


def commits_what_is_left_of_a_group() -> AbstractContextManager[object]:
    """Rank 0 commits a checkpoint without the part of a rank that is gone."""
    parts = Leader.parts

    def wrongly(self: Leader, step: int) -> list[CheckpointPart]:
        try:
            return parts(self, step)
        except GroupBroken:
            return [
                part.part
                for other in self._peers.all()
                if (part := other.parts.get(step)) and part.part
            ]

    return patch.object(Leader, "parts", wrongly)


def trains_on_although_rank_0_is_gone() -> AbstractContextManager[object]:
    """A rank takes it that nobody stops it where nobody is there."""
    hear = RankMember._receive_all

    class Forever(deque[Message]):
        def popleft(self) -> Message:
            return Ordered(RankCommand())

    def wrongly(self: RankMember) -> None:
        self._leave = lambda: None
        hear(self)
        if not self._over:
            with self._changed:
                self._over, self._inbox = True, Forever([Ordered(RankCommand())])
                self._changed.notify_all()

    return patch.object(RankMember, "_receive_all", wrongly)


def stops_trials_at_a_limit() -> AbstractContextManager[object]:
    """What runs as the money ends is given up, not paused."""
    return patch.object(Closing, "pauses", False)


def spends_on() -> AbstractContextManager[object]:
    """Nothing new begins at a limit, and what runs is left alone."""
    return patch.object(limits, "over", lambda *_: None)


def leaves_no_time_to_save() -> AbstractContextManager[object]:
    """Trials are asked to save when the money is spent."""
    return patch.object(limits, "leave_seconds", lambda _: 0.0)


# ---- the cuts


def _some(
    name: str, count: int, where: Callable[[Transition], bool] = lambda _: True
) -> list[Transition]:
    return random.Random(SEED).sample([t for t in whole(name).tape if where(t)], count)


def _spread(tape: Sequence[Transition]) -> list[int]:
    torn = [t.number for t in tape if t.when == "torn"]
    return [*range(0, len(tape), 9), *torn[::4]]


def nothing_dies() -> None:
    """The uninterrupted run, watched."""
    for name in (ONE_SLOT, SLOTS):
        uncut(name)


def everything_dies() -> None:
    """At transitions of an uninterrupted run that is as broken, and not watched."""
    for name in (ONE_SLOT, SLOTS):
        with unwatched():
            broken = uncut(name, check=False)
        for number in _spread(broken.tape):
            with unwatched(), cuts.told(f"everything died at {broken.tape[number]}"):
                go_on(name, restored(broken.states[number]), seed=number)


def the_coordinator_dies() -> None:
    for name in (ONE_SLOT, SLOTS):
        for transition in _some(name, 8):
            with unwatched():
                cuts.coordinator_dies(name, transition)


def a_worker_dies() -> None:
    for name in (ONE_SLOT, SLOTS):
        for transition in _some(name, 8, lambda t: t.who.startswith("worker")):
            with unwatched():
                cuts.worker_dies(name, transition)


def a_worker_is_cut_off() -> None:
    for transition in _some(SLOTS, 12, lambda t: t.who.startswith("worker")):
        with unwatched():
            cuts.worker_is_cut_off(SLOTS, transition)


def a_driver_is_overtaken() -> None:
    for transition in random.Random(SEED).sample(whole(SLOTS).open, 6):
        with unwatched():
            cuts.overtaken(SLOTS, transition)


def nothing_dies_in_groups() -> None:
    """The uninterrupted run of two ranks, watched."""
    uncut(RANKS)


def a_group_dies() -> None:
    """With all else."""
    with unwatched():
        broken = uncut(RANKS, check=False)
    for transition in broken.tape[::12]:
        with unwatched(), cuts.told(f"everything died at {transition}"):
            go_on(RANKS, restored(broken.states[transition.number]), seed=transition.number)


def rank_0_dies() -> None:
    for transition in _some(RANKS, 6, lambda t: t.who.startswith("worker") and "rank" not in t.who):
        with unwatched():
            cuts.worker_dies(RANKS, transition)


def another_rank_dies() -> None:
    for transition in _some(RANKS, 8, lambda t: "rank" in t.who):
        with unwatched():
            cuts.another_rank_dies(RANKS, transition)


def nothing_dies_near_a_limit() -> None:
    """The uninterrupted run of one that its money ends in the middle, and that continues."""
    uncut(LIMITED)


def everything_dies_near_a_limit() -> None:
    """At transitions of an uninterrupted run that is as broken, and not watched."""
    with unwatched():
        broken = uncut(LIMITED, check=False)
    for number in _spread(broken.tape):
        with unwatched(), cuts.told(f"everything died at {broken.tape[number]}"):
            go_on(LIMITED, restored(broken.states[number]), seed=number)


CUTS: Sequence[Callable[[], None]] = (
    nothing_dies, everything_dies, the_coordinator_dies, a_worker_dies, a_worker_is_cut_off, a_driver_is_overtaken,
)  # fmt: skip
"""Only the first is watched while it runs (`checks.WATCHED`): of the others it is told what they
find by their end.
"""
CUTS_OF_GROUPS: Sequence[Callable[[], None]] = (
    nothing_dies_in_groups,
    a_group_dies,
    rank_0_dies,
    another_rank_dies,
)
"""The same for trials of several ranks."""
CUTS_AT_LIMITS: Sequence[Callable[[], None]] = (
    nothing_dies_near_a_limit,
    everything_dies_near_a_limit,
)
"""The same for one that money limits."""

NOTICED_BY: Mapping[Breakage, set[Callable[[], None]]] = {
    acts_before_it_is_written: {nothing_dies},
    accepts_a_lease_that_is_not_held: {a_worker_is_cut_off},
    writes_on_after_it_was_superseded: {a_driver_is_overtaken},
    commits_the_manifest_before_the_blobs: {nothing_dies},
    keeps_the_rows_beyond_the_restored_step: {everything_dies, a_worker_dies},
    forgets_where_a_torn_segment_was_cut: {everything_dies},
}
NOTICED_IN_GROUPS: Mapping[Breakage, set[Callable[[], None]]] = {
    commits_before_the_part_of_another_rank_is_durable: {nothing_dies_in_groups},
    commits_what_is_left_of_a_group: {another_rank_dies},
    trains_on_although_rank_0_is_gone: {rank_0_dies},
}
NOTICED_AT_LIMITS: Mapping[Breakage, set[Callable[[], None]]] = {
    stops_trials_at_a_limit: {nothing_dies_near_a_limit, everything_dies_near_a_limit},
    spends_on: {nothing_dies_near_a_limit, everything_dies_near_a_limit},
    leaves_no_time_to_save: {nothing_dies_near_a_limit},
}


@contextmanager
def unwatched() -> Iterator[None]:
    """Within the block, sessions are not looked at while they run."""
    with ExitStack() as stack:
        for module in ("tests.faults.scenarios", "tests.faults.cuts"):
            stack.enter_context(patch(f"{module}.WATCHED", {}))
            stack.enter_context(patch(f"{module}.watch", None))
        yield


def said(cut: Callable[[], None]) -> str:
    """What a cut says; empty for nothing."""
    try:
        cut()
    except TypeError:  # the breakage does not fit the code that it breaks
        raise
    except Exception as error:  # noqa: BLE001 - however a test goes red
        return " ".join(f"{type(error).__name__}: {error}".split())[:150]
    return ""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What broken coordinators raised is told by the collector, at the latest here: not while a
    later test parses code.
    """
    yield
    gc.collect()


@pytest.mark.parametrize("breakage", [nullcontext, *NOTICED_BY], ids=lambda b: b.__name__)
def test_what_is_broken_is_noticed(breakage: Breakage) -> None:
    _must_be_noticed(breakage, CUTS, NOTICED_BY)


@pytest.mark.parametrize("breakage", [nullcontext, *NOTICED_IN_GROUPS], ids=lambda b: b.__name__)
def test_what_is_broken_in_a_group_is_noticed(breakage: Breakage) -> None:
    _must_be_noticed(breakage, CUTS_OF_GROUPS, NOTICED_IN_GROUPS)


@pytest.mark.parametrize("breakage", [nullcontext, *NOTICED_AT_LIMITS], ids=lambda b: b.__name__)
def test_what_is_broken_at_a_limit_is_noticed(breakage: Breakage) -> None:
    _must_be_noticed(breakage, CUTS_AT_LIMITS, NOTICED_AT_LIMITS)


def _must_be_noticed(
    breakage: Breakage,
    made: Sequence[Callable[[], None]],
    by: Mapping[Breakage, set[Callable[[], None]]],
) -> None:
    for name in (ONE_SLOT, SLOTS, RANKS, LIMITED):
        whole(name)  # what is right is known before anything is broken
    with breakage():
        heard = {cut: said(cut) for cut in made}
    if breakage is nullcontext:
        assert not any(heard.values()), f"nothing is broken: {heard}"
        return
    tally.catches[breakage.__name__.replace("_", " ")] = {
        cut.__name__.replace("_", " "): heard[cut] for cut in made
    }
    for cut in by[breakage]:
        assert heard[cut], f"{cut.__name__} does not notice"
