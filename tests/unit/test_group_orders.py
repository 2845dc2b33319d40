"""What rank 0 hears, of its coordinator or of the machines, all ranks do at the same step: they
save there, and leave.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from regrow.search.events import Saved
from regrow.tasks.checkpoint.manifests import unseal
from regrow.tasks.ports.messages import Progress, Reply
from regrow.tasks.trial.reporter import Reporter
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import outcome
from tests.unit.grouped import Grouping
from tests.unit.office import MakeOffice, Office
from tests.unit.programs import await_true

PROMOTES = {"asha": {"type": "promotion", "grace_period": 2, "reduction_factor": 2}}
STOPS = {"asha": {"grace_period": 2, "reduction_factor": 2}}


class Course:
    """A training that notes what each rank did. `score` of a trial, `before` each report: called
    with trial and step.
    """

    def __init__(
        self,
        score: Callable[[Trial], float] = lambda _: 1.0,
        before: Callable[[Trial, int], object] = lambda *_: None,
    ) -> None:
        self._score, self._before = score, before
        self.done: dict[int, list[int]] = defaultdict(list)
        self.restored: dict[int, dict[str, str] | None] = {}

    def __call__(self, trial: Trial) -> None:
        rank = trial.world.rank
        self.restored[rank] = (
            {path.name: path.read_text() for path in trial.restored.iterdir()}
            if trial.restored
            else None
        )
        for step in trial.steps():
            self._before(trial, step)
            trial.report({"score": self._score(trial)}, checkpoint=self._saving(rank, step))
            self.done[rank].append(step)

    @staticmethod
    def _saving(rank: int, step: int) -> Callable[[Path], object]:
        return lambda folder: (folder / f"part-{rank}").write_text(f"{step}")

    @property
    def together(self) -> list[int]:
        """The steps that all ranks did."""
        assert len({tuple(steps) for steps in self.done.values()}) == 1, self.done
        return self.done[0]


def parts(office: Office, trial: int = 0) -> dict[int, set[int]]:
    """Of which ranks the checkpoints have files, by step."""
    saved = [event for event in office.events if isinstance(event, Saved) and event.trial == trial]
    return {
        event.step: {
            f.rank for f in unseal(event.manifest, office.store.read(event.manifest)).files
        }
        for event in saved
    }


@pytest.mark.parametrize("size", [2, 3])
def test_a_pause_that_is_decided_reaches_all_ranks_at_its_step(
    make_pair: MakeOffice, group: Grouping, size: int
) -> None:
    office, course = (
        make_pair(resources={"workers": size}, schedule=PROMOTES, checkpoint={"every_steps": 5}),
        Course(),
    )
    assert outcome(group(office, course))[0] == "paused"
    assert course.together == [1, 2]
    assert parts(office) == {2: set(range(size))}


def test_a_stop_that_is_decided_reaches_all_ranks_at_its_step(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office, better = make_pair(schedule=STOPS, trials=2, slots=2), Course()
    assert outcome(group(office, better)) == ("done", "", "")
    assert better.together == [1, 2, 3, 4, 5]
    worse = Course(score=lambda _: 0.0)
    assert outcome(group(office, worse))[0] == "stopped"
    assert worse.together == [1, 2]


def slow(rank: int) -> Callable[[Trial, int], object]:
    return lambda trial, _: time.sleep(0.05) if trial.world.rank == rank else None


@pytest.mark.parametrize("behind", [0, 1])
def test_what_comes_in_the_middle_of_a_step_is_done_by_all_after_it(
    make_pair: MakeOffice, group: Grouping, behind: int
) -> None:
    """Whichever rank is further then."""
    office, hold = make_pair(checkpoint={"every_steps": 5}), slow(behind)

    def before(trial: Trial, step: int) -> None:
        hold(trial, step)
        if step == 3 and isinstance(trial._reporter, Reporter):
            office.interrupt()
            assert trial._reporter.flush().reason == "paused"

    course = Course(before=before)
    assert outcome(group(office, course))[0] == "paused"
    assert course.together == [1, 2, 3]
    assert parts(office) == {3: {0, 1}}


def test_all_save_once_more_where_that_is_heard_only_after_the_orders_of_a_step(
    make_pair: MakeOffice, group: Grouping
) -> None:
    """The others have their orders for step 3, and are in step 4, when rank 0 hears of it."""
    office, begun = make_pair(checkpoint={"every_steps": 5}), threading.Event()

    def before(trial: Trial, step: int) -> None:
        if step == 4 and trial.world.rank == 1:
            begun.set()
        if step == 4 and isinstance(trial._reporter, Reporter):
            assert begun.wait(10)
            office.interrupt()
            trial._reporter.flush()

    course = Course(before=before)
    assert outcome(group(office, course))[0] == "paused"
    assert course.together == [1, 2, 3, 4]
    assert parts(office) == {4: {0, 1}}


def noticed(group: Grouping, rank: int, at: int, *, node: bool) -> Callable[[Trial, int], object]:
    """A rank's machine says before step `at` that it goes away; the training continues when rank 0
    knows.
    """

    def before(trial: Trial, step: int) -> None:
        if step != at:
            return
        if trial.world.rank == rank:
            (group.bench if rank == 0 else group.ranks[rank].bench).notice("it is taken back", node)
        if isinstance(trial._reporter, Reporter):
            assert await_true(lambda: trial.told == "preempted")

    return before


@pytest.mark.parametrize(("rank", "node"), [(0, True), (1, True), (2, True), (2, False)])
def test_a_notice_on_any_rank_has_all_save_at_the_same_step_and_leave(
    make_pair: MakeOffice, group: Grouping, rank: int, node: bool
) -> None:
    office = make_pair(resources={"workers": 3}, checkpoint={"every_steps": 5})
    course = Course(before=noticed(group, rank, 3, node=node))
    ended = outcome(group(office, course, nodes={0: "n0", 1: "n1", 2: "n2"}))
    assert ended == ("preempted", "preempted" if node else "infrastructure", "it is taken back")
    assert course.together == [1, 2, 3]
    assert parts(office) == {3: {0, 1, 2}}
    assert office.instructions().drain == (((f"n{rank}", "it is taken back"),) if node else ())


def test_after_a_notice_all_ranks_go_on_from_there(make_pair: MakeOffice, group: Grouping) -> None:
    office = make_pair(checkpoint={"every_steps": 5})
    group(office, Course(before=noticed(group, 1, 3, node=True)), nodes={0: "n0", 1: "n1"})
    after = Course()
    assert outcome(group(office, after, nodes={0: "n0", 1: "n2"})) == ("done", "", "")
    assert after.together == [4, 5]
    assert after.restored == {0: {"part-0": "3", "part-1": "3"}, 1: {"part-0": "3", "part-1": "3"}}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_checkpoint_is_saved_of_whichever_rank_has_one(
    make_pair: MakeOffice, group: Grouping, rank: int
) -> None:
    office = make_pair(max_steps=3, checkpoint={"every_steps": 2})

    def train(trial: Trial) -> None:
        for step in trial.steps():
            saves = saving(rank, step) if trial.world.rank == rank else None
            trial.report({"score": step}, checkpoint=saves)

    assert outcome(group(office, train)) == ("done", "", "")
    assert parts(office) == {2: {rank}, 3: {rank}}


# ---- checkpoints that are deleted meanwhile


class Gated:
    """A rank's store in which blobs of a step wait, once it is shut."""

    def __init__(self, store: Any) -> None:
        self._store, self.gate, self.shut, self.reached = (
            store,
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, key: str, data: bytes | Path) -> None:
        if self.shut.is_set():
            self.reached.set()
            assert self.gate.wait(20)
        self._store.create(key, data)


def writes(rank: int, step: int) -> Mapping[str, str]:
    """Of rank 1 one file is the same at each other step, one is new at each."""
    return (
        {"w-0": f"{step}"}
        if rank == 0
        else {"w-1": "even" if step % 2 == 0 else "odd", "new-1": f"{step}"}
    )


def saving(rank: int, step: int) -> Callable[[Path], object]:
    return lambda folder: [
        (folder / name).write_text(text) for name, text in writes(rank, step).items()
    ]


def whole(office: Office) -> dict[int, dict[str, str]]:
    """The files of the checkpoints that the log keeps, by step."""
    found: dict[int, dict[str, str]] = {}
    for step, kept in office.history.trials[0].checkpoints.items():
        files = unseal(kept.manifest, office.store.read(kept.manifest)).files
        found[step] = {file.path: office.store.read(file.key).decode() for file in files}
    return found


def expected(*steps: int) -> dict[int, dict[str, str]]:
    return {step: {**writes(0, step), **writes(1, step)} for step in steps}


@pytest.fixture
def few(make_pair: MakeOffice) -> Office:
    """An experiment that keeps the last checkpoint alone."""
    return make_pair(max_steps=4, checkpoint={"keep_last": 1, "keep_best": 0})


def test_what_another_rank_wrote_before_is_sent_again_where_it_was_deleted_meanwhile(
    few: Office, group: Grouping
) -> None:
    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(trial.world.rank, step))
            if trial.world.rank == 0:  # what is deleted after this step is deleted before the next
                writer: Any = trial._writer
                writer.drain()
                trial._reporter.flush()
                assert await_true(lambda: len(few.store.list("manifests/")) == 1)
                writer.drain()
                assert whole(few) == expected(step)

    assert outcome(group(few, train)) == ("done", "", "")


def test_nothing_is_deleted_while_another_rank_uploads(few: Office, group: Grouping) -> None:
    """Its part refers to a file of the checkpoint that is to be deleted, as it has sent that
    already.
    """
    gated, real, seen = Gated(few.store), few.report, list[str]()

    def held(progress: Progress) -> Reply:
        # whose answer says that the first is to be deleted
        if any(saved.step == 2 for saved in progress.saved):
            assert gated.reached.wait(10)
        return real(progress)

    few.report = held  # type: ignore[method-assign]  # the answer takes a while

    def train(trial: Trial) -> None:
        writer: Any = trial._writer
        for step in trial.steps():
            if step == 3 and trial.world.rank == 0:
                writer.drain()
                gated.shut.set()
            trial.report({"score": step}, checkpoint=saving(trial.world.rank, step))
            if step == 3 and trial.world.rank == 0:
                assert gated.reached.wait(10)
                assert await_true(lambda: bool(writer._jobs))
                seen.extend(few.store.list("manifests/"))
                gated.shut.clear()
                gated.gate.set()
                writer.drain()
                trial._reporter.flush()
                writer.drain()
                assert whole(few) == expected(3)

    assert outcome(group(few, train, stores={1: gated})) == ("done", "", "")
    assert [Path(key).name for key in seen] == ["0000000001.json", "0000000002.json"]
