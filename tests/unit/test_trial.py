"""One attempt from its assignment to its outcome, against a real coordinator and a store in memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import msgspec
import pytest

from regrow.infra.stores.memory import MemoryStore
from regrow.search import cost
from regrow.search.events import Began, Decided, Ended, Row, Saved
from regrow.search.lifecycle import TrialState
from regrow.tasks import reporter as reporting
from regrow.tasks.attempt import Finished, run_attempt
from regrow.tasks.errors import UserError
from regrow.tasks.messages import Arrival, Assignment, DeskGone, Order, Progress
from regrow.tasks.ports import Unavailable
from regrow.tasks.reporter import Reporter
from regrow.tasks.trial import Trial
from tests.unit.office import Bench, Office
from tests.unit.told import kept

Make = Callable[..., Office]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes an office; messages are sent only where an attempt must, not by the clock."""
    monkeypatch.setattr(reporting, "FLUSH_SECONDS", 60.0)
    offices: list[Office] = []

    def made(**changes: Any) -> Office:
        offices.append(Office(**{"trainable": "work_under_test:train", "schedule": "fifo", "max_steps": 5, **changes}))
        return offices[-1]

    yield made
    for office in offices:
        office.close()


class Attempting:
    """Runs attempts of a trainable as a worker would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._module = ModuleType("work_under_test")
        self.bench = Bench()
        self._module.__spec__ = ModuleSpec("work_under_test", None)
        monkeypatch.setitem(sys.modules, "work_under_test", self._module)

    def __call__(
        self, office: Office, train: object, assignment: Assignment | None = None, *, store: Any = None, task_run: str = "run-0"
    ) -> Finished:
        vars(self._module)["train"] = train
        return run_attempt(
            office.job,
            assignment or office.submitted(),
            office,
            store or office.store,
            host=self.bench,
            task_run=task_run,
            carry_on=lambda: False,
        )


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Attempting:
    return Attempting(monkeypatch)


class Killed(BaseException):
    """The worker is killed: nothing after this is sent."""


def save(folder: Path) -> None:
    (folder / "model").write_text("weights")


def saving(step: int) -> Callable[[Path], object]:
    return lambda folder: (folder / "step").write_text(str(step))


def steadily(trial: Trial) -> None:
    for step in trial.steps():
        trial.report({"score": step / 10}, checkpoint=saving(step))


def sent(trial: Trial) -> None:
    """Waits until all that was reported and saved so far is in the log."""
    trial._writer.drain()
    trial._reporter.flush()


def steps(office: Office, trial: int = 0) -> list[int]:
    return [row.step for _, row in kept(office.events).get(trial, [])]


def outcome(finished: Finished) -> tuple[str, str, str]:
    return finished.ended.outcome, finished.ended.cause, finished.ended.message


# Steps and decisions


def test_a_trial_runs_to_its_last_step(make: Make, attempt: Attempting) -> None:
    office = make()
    assert outcome(attempt(office, steadily)) == ("done", "", "")
    assert steps(office) == [1, 2, 3, 4, 5]
    assert office.history.trials[0].state is TrialState.DONE
    assert office.instructions().finished == "finished"


@pytest.mark.parametrize(("schedule", "messages"), [("fifo", 1), ("asha", 3)])
def test_the_coordinator_is_asked_only_where_a_decision_is_due(
    make: Make, attempt: Attempting, schedule: str, messages: int
) -> None:
    office = make(schedule=schedule, max_steps=9)
    attempt(office, lambda trial: [trial.report({"score": 1.0}) for _ in trial.steps()])
    assert len(office.told) == messages
    assert [len(news.rows) for news in office.told] == ([9] if schedule == "fifo" else [1, 2, 6])
    assert steps(office) == list(range(1, 10))


def test_a_trial_that_is_stopped_at_a_rung_ends_there(make: Make, attempt: Attempting) -> None:
    office = make(schedule="asha", max_steps=9, trials=2)
    attempt(office, steadily)
    after: list[int] = []

    def worse(trial: Trial) -> None:
        for _ in trial.steps():
            trial.report({"score": 0.0})
        after.append(trial.step)

    assert outcome(attempt(office, worse)) == ("stopped", "", "place 2 of 2 at rung 1, 1 go on")
    assert after == [1], "the code after the loop runs"
    assert office.history.trials[1].state is TrialState.STOPPED


def test_a_trainable_with_a_loop_of_its_own_is_unwound(make: Make, attempt: Attempting) -> None:
    office = make(schedule="asha", max_steps=9, trials=2)
    attempt(office, steadily)
    reached: list[int] = []

    def worse(trial: Trial) -> None:
        for step in range(1, 100):
            reached.append(step)
            try:
                trial.report({"score": 0.0})
            except Exception:  # noqa: BLE001 - as careless user code does
                reached.append(-1)

    assert attempt(office, worse).ended.outcome == "stopped"
    assert reached == [1]


def test_phases_go_on_one_after_the_other(make: Make, attempt: Attempting) -> None:
    office = make(schedule="asha", max_steps=9)

    def phases(trial: Trial) -> None:
        for end in (2, 4, 20):
            for step in trial.steps(until=end):
                trial.report({"score": step})

    assert attempt(office, phases).ended.outcome == "done"
    assert steps(office) == list(range(1, 10))
    assert [e.step for e in office.events if isinstance(e, Decided)] == [1, 3]


def test_a_rung_at_the_end_of_a_phase_is_judged_before_the_next(make: Make, attempt: Attempting) -> None:
    office = make(schedule="asha", max_steps=9, trials=2)
    attempt(office, steadily)

    def phases(trial: Trial) -> None:
        for end in (1, 9):
            for _ in trial.steps(until=end):
                trial.report({"score": 0.0})

    attempt(office, phases)
    assert steps(office, 1) == [1]


# Restoring


def test_a_restored_trial_goes_on_at_the_next_step(make: Make, attempt: Attempting) -> None:
    office = make(checkpoint={"every_steps": 2})
    seen: list[tuple[int, str, int]] = []

    def killed_at_4(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(step))
            if step == 3:
                sent(trial)
                raise Killed

    with pytest.raises(Killed):
        attempt(office, killed_at_4)
    office.lost(0, 1)

    def again(trial: Trial) -> None:
        for step in trial.steps():
            assert trial.restored is not None
            seen.append((step, (trial.restored / "step").read_text(), trial.attempt))
            trial.report({"score": step + 100})

    assert attempt(office, again).ended.outcome == "done"
    assert seen == [(3, "2", 2), (4, "2", 2), (5, "2", 2)]
    trial = office.history.trials[0]
    assert list(trial.values) == [1, 2, 103, 104, 105]
    assert list(trial.curve.lineage()) == [1, 1, 2, 2, 2]
    assert office.history.lost_steps == 1


def test_a_store_that_is_away_at_the_start_for_too_long_supersedes_nothing(
    make: Make, attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.tasks.attempt.PATIENCE_SECONDS", 0.1)
    office = make()

    def killed(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(step))
            if step == 3:
                sent(trial)
                raise Killed

    with pytest.raises(Killed):
        attempt(office, killed)
    office.lost(0, 1)

    class Away(MemoryStore):
        def read(self, key: str) -> bytes:
            raise Unavailable(key, "no network")

    ended = attempt(office, steadily, store=Away()).ended
    assert (ended.outcome, ended.cause) == ("failed", "infrastructure")
    assert "no network" in ended.message
    trial = office.history.trials[0]
    assert trial.step == 3
    assert max(trial.checkpoints) == 3
    assert trial.state is TrialState.RUNNING, "its next attempt"
    attempt(office, steadily)
    assert [e.restored for e in office.events if isinstance(e, Began)] == [0, 3]
    assert office.history.lost_steps == 0


def test_a_trial_that_was_lost_after_its_last_step_is_done_without_another(make: Make, attempt: Attempting) -> None:
    office = make(max_steps=2)

    def killed(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(step))
        sent(trial)
        raise Killed

    with pytest.raises(Killed):
        attempt(office, killed)
    office.lost(0, 1)
    assert attempt(office, steadily).ended.outcome == "done"
    assert steps(office) == [1, 2]


# Interruption


@pytest.mark.parametrize("node", [False, True])
def test_a_notice_saves_a_checkpoint_at_the_step_under_way_and_the_next_attempt_goes_on_there(
    make: Make, attempt: Attempting, node: bool
) -> None:
    office = make(checkpoint={"every_steps": 100}, retries={"infrastructure": 0})

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3 and trial.attempt == 1:
                attempt.bench.notice("two minutes left", node)
            trial.report({"score": step}, checkpoint=saving(step))

    assert outcome(attempt(office, train)) == ("preempted", "preempted", "two minutes left")
    assert office.told[-1].doomed == ("two minutes left" if node else "")
    assert attempt(office, train).ended.outcome == "done"
    first, second = office.history.trials[0].attempts
    assert (first.to_step, second.from_step, office.history.lost_steps) == (3, 3, 0)


def test_a_decision_to_stop_outweighs_a_notice(make: Make, attempt: Attempting) -> None:
    office = make(schedule={"asha": {"grace_period": 2, "reduction_factor": 2}}, max_steps=4, trials=2, slots=1)
    assert attempt(office, steadily).ended.outcome == "done"

    def worse(trial: Trial) -> None:
        for step in trial.steps():
            if step == 2:
                attempt.bench.notice("two minutes left", False)
            trial.report({"score": -100.0}, checkpoint=saving(step))

    ended = attempt(office, worse).ended
    assert ended.outcome in ("stopped", "preempted")
    assert office.history.trials[1].state is TrialState.STOPPED


def test_an_interruption_saves_a_checkpoint_at_the_step_under_way(make: Make, attempt: Attempting) -> None:
    office = make(checkpoint={"every_steps": 100})

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3:
                office.interrupt()
                sent(trial)
            trial.report({"score": step}, checkpoint=saving(step))

    assert outcome(attempt(office, train)) == ("paused", "", "by the user")
    trial = office.history.trials[0]
    assert list(trial.checkpoints) == [trial.step] == [3]
    assert office.instructions().finished == "interrupted"
    office.open("driver-2")
    assert attempt(office, steadily).ended.outcome == "done"
    assert office.history.lost_steps == 0


def test_the_step_under_way_is_not_thrown_away_though_the_one_before_was_saved(make: Make, attempt: Attempting) -> None:
    office = make(checkpoint={"every_steps": 1})

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3:
                office.interrupt()
                sent(trial)
            trial.report({"score": step}, checkpoint=saving(step))

    attempt(office, train)
    assert steps(office) == [1, 2, 3]


def test_no_further_step_is_begun_where_the_last_is_saved(make: Make, attempt: Attempting) -> None:
    office = make()
    begun: list[int] = []

    def train(trial: Trial) -> None:
        for step in trial.steps():
            begun.append(step)
            trial.report({"score": step}, checkpoint=saving(step))
            if step == 2:
                office.interrupt()
                sent(trial)

    assert attempt(office, train).ended.outcome == "paused"
    assert begun == [1, 2]


def test_a_trainable_that_ended_by_itself_is_done_though_it_was_told_to_pause(make: Make, attempt: Attempting) -> None:
    office = make(max_steps=None)

    def converges(trial: Trial) -> None:
        for step in trial.steps():
            if step == 2:
                office.interrupt()
                sent(trial)
            trial.report({"score": step}, checkpoint=save)
            if step == 2:
                return

    assert attempt(office, converges).ended.outcome == "done"


def test_told_to_pause_and_to_stop_at_once_it_is_stopped_for_good(make: Make, attempt: Attempting) -> None:
    office = make(schedule="asha", max_steps=9, trials=2)
    attempt(office, steadily)

    def worse(trial: Trial) -> None:
        for _ in trial.steps():
            office.interrupt()
            trial._reporter.flush()
            trial.report({"score": 0.0}, checkpoint=save)

    ended = attempt(office, worse).ended
    assert ended.outcome in ("paused", "stopped")
    assert office.history.trials[1].state is TrialState.STOPPED
    office.open("driver-2")
    assert not office.instructions().submit


# Class trainables


class Model:
    """Counts; done at its third step."""

    made: list[Model] = []  # noqa: RUF012 - of one test at a time
    breaks = False

    def setup(self, config: dict[str, Any]) -> None:
        self.count, self.cleaned = 0, False
        Model.made.append(self)

    def step(self) -> dict[str, Any]:
        self.count += 1
        if self.breaks and self.count == 2:
            raise ValueError("broken")
        return {"score": self.count, "done": self.count == 3}

    def save(self, folder: Path) -> None:
        (folder / "count").write_text(str(self.count))

    def load(self, folder: Path) -> None:
        self.count = int((folder / "count").read_text())

    def cleanup(self) -> None:
        self.cleaned = True


@pytest.fixture(autouse=True)
def _no_models() -> None:
    Model.made.clear()


def test_a_class_that_says_it_is_done_ends_its_trial(make: Make, attempt: Attempting) -> None:
    office = make(max_steps=None)
    assert attempt(office, Model).ended.outcome == "done"
    assert steps(office) == [1, 2, 3]
    assert set(kept(office.events)[0][0][1].metrics) == {"score"}
    assert Model.made[0].cleaned


def test_its_last_step_is_saved_though_no_checkpoint_was_due(make: Make, attempt: Attempting) -> None:
    office = make(checkpoint={"every_steps": 2})
    attempt(office, Model)
    assert [event.step for event in office.events if isinstance(event, Saved)] == [2, 3]


def test_a_class_is_cleaned_up_after_an_error(make: Make, attempt: Attempting) -> None:
    office = make()

    class Broken(Model):
        breaks = True

    ended = attempt(office, Broken).ended
    assert (ended.outcome, ended.cause, ended.message) == ("failed", "error", "ValueError: broken")
    assert Model.made[0].cleaned
    assert steps(office) == [1]


def test_a_class_is_loaded_from_its_checkpoint(make: Make, attempt: Attempting) -> None:
    office = make()

    class Interrupted(Model):
        def step(self) -> dict[str, Any]:
            if self.count == 1:
                office.interrupt()
            return super().step()

    real_add = Reporter.add

    def add(self: Reporter, row: Row) -> None:
        real_add(self, row)
        self.flush()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Reporter, "add", add)
        assert attempt(office, Interrupted).ended.outcome == "paused"
    office.open("driver-2")
    assert attempt(office, Model).ended.outcome == "done"
    assert steps(office) == [1, 2, 3]
    assert [e.restored for e in office.events if isinstance(e, Began)] == [0, 2]


# Errors are values


def raises(error: BaseException) -> Callable[[Trial], None]:
    def train(trial: Trial) -> None:
        trial.report({"score": 1.0})
        raise error

    return train


@pytest.mark.parametrize(
    ("error", "cause", "message"),
    [
        (ValueError("bad shape\nsecond line"), "error", "ValueError: bad shape"),
        (KeyError("lr"), "error", "KeyError: 'lr'"),
        (SystemExit(3), "error", "SystemExit: 3"),
        (MemoryError(), "infrastructure", "out of memory"),
        (UserError("trainable: no such file"), "error", "trainable: no such file"),
        (Unavailable("k", "full"), "infrastructure", "the store failed"),
    ],
)
def test_what_the_trainable_raises_becomes_the_outcome(
    make: Make, attempt: Attempting, error: BaseException, cause: str, message: str
) -> None:
    office = make()
    ended = attempt(office, raises(error)).ended
    assert (ended.outcome, ended.cause) == ("failed", cause)
    assert ended.message.startswith(message)
    assert "\n" not in ended.message
    assert steps(office) == [1], "what was reported before counts"
    expected = TrialState.FAILED if cause == "error" else TrialState.RUNNING
    assert office.history.trials[0].state is expected


@pytest.mark.parametrize("code", [None, 0])
def test_a_script_that_exits_without_an_error_has_ended(make: Make, attempt: Attempting, code: int | None) -> None:
    office = make()
    assert attempt(office, raises(SystemExit(code))).ended.outcome == "done"
    assert office.history.trials[0].state is TrialState.DONE


def test_the_traceback_begins_with_the_users_code(make: Make, attempt: Attempting) -> None:
    office = make()
    trace = attempt(office, raises(ValueError("bad shape"))).ended.trace
    frames = [line for line in trace.splitlines() if line.strip().startswith("File")]
    assert len(frames) == 1
    assert Path(__file__).name in frames[0]
    assert trace.rstrip().endswith("ValueError: bad shape")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (lambda t: t.report({"scores": 1.0}), "did you mean 'scores'?"),
        (lambda t: t.report({}), "'score' was not reported"),
        (lambda t: t.report({"score": float("nan")}), "nan, not a finite number"),
        (lambda t: t.report({"score": float("inf")}), "inf, not a finite number"),
        (lambda t: t.report({"score": "high"}), "not a number"),
        (lambda t: t.report({"score": True}), "not a number"),
        (lambda t: [t.report({"score": 1.0}) for _ in range(2)], "reported twice at step 1"),
        (lambda _: None, "did not report at step 1"),
    ],
)
def test_a_report_that_cannot_be_recorded_fails_with_one_line(
    make: Make, attempt: Attempting, report: Callable[[Trial], object], said: str
) -> None:
    office = make()

    def train(trial: Trial) -> None:
        for _ in trial.steps():
            report(trial)

    ended = attempt(office, train).ended
    assert (ended.outcome, ended.cause, ended.trace) == ("failed", "error", "")
    assert said in ended.message
    assert "trial 0" in ended.message


def test_a_trainable_that_never_reports_failed(make: Make, attempt: Attempting) -> None:
    assert "without ever reporting 'score'" in attempt(make(), lambda _: None).ended.message


def test_other_metrics_may_be_missing_or_not_finite(make: Make, attempt: Attempting) -> None:
    office = make(max_steps=2)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": 1, "loss": float("nan")} if step == 1 else {"score": 1.0})

    assert attempt(office, train).ended.outcome == "done"
    assert [row.metrics for _, row in kept(office.events)[0]] == [{"score": 1.0, "loss": None}, {"score": 1.0}]


# The lease


def test_a_fenced_attempt_ends_and_sends_nothing_more(make: Make, attempt: Attempting) -> None:
    office = make()
    told: list[int] = []

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=save)
            if step == 2:
                sent(trial)
                office.lost(0, 1)
                trial._reporter.flush()
                told.append(len(office.told))
                trial._reporter.flush()

    finished = attempt(office, train)
    assert finished.order.reason == "fenced"
    assert told == [len(office.told)]
    assert steps(office) == [1, 2]
    assert [e.outcome for e in office.events if isinstance(e, Ended)] == ["lost"]


def test_an_attempt_whose_coordinator_is_gone_is_fenced() -> None:
    class Nobody:
        def tell(self, progress: Progress) -> Order:
            raise DeskGone("no answer")

    reporter = Reporter(Nobody(), ASSIGNMENT, ARRIVAL, list)
    reporter.add(Row(1, 0.0, {"score": 1.0}))
    assert reporter.flush().reason == "fenced"


def test_the_same_news_told_twice_changes_nothing(make: Make, attempt: Attempting) -> None:
    office = make(schedule="asha", max_steps=9, checkpoint={"keep_last": 1, "keep_best": 0})
    again: list[tuple[Order, Order]] = []
    real = office.tell

    def twice(progress: Progress) -> Order:
        order = real(progress)
        before = office.events
        again.append((order, office.wait(office.coordinator.tell(progress))))
        assert office.events == before
        return order

    office.tell = twice  # type: ignore[method-assign]  # the network repeats what it delivers

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(step))
            if step % 2:
                trial._writer.drain()

    assert attempt(office, train).ended.outcome == "done"
    assert len(again) >= 3
    assert all((one.until, one.reason) == (two.until, two.reason) for one, two in again)
    assert len([e for e in office.events if isinstance(e, Saved)]) == 9


def test_a_coordinator_that_comes_back_goes_on_where_it_was(make: Make, attempt: Attempting) -> None:
    office = make(schedule="asha", max_steps=9, trials=2)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(step))
            if step in (2, 3, 5):
                office.open("driver-1")

    assert outcome(attempt(office, train)) == ("done", "", "")
    assert outcome(attempt(office, train)) == ("done", "", "")
    history = office.history
    assert [t.step for t in history.trials] == [9, 9]
    assert [len(t.attempts) for t in history.trials] == [1, 1]
    assert history.sittings == 1


def test_a_trial_that_is_over_before_anything_was_sent_has_its_seconds_all_the_same(make: Make, attempt: Attempting) -> None:
    """Its beginning, its rows and its end travel in one message."""
    office = make(max_steps=2)
    took: list[float] = []

    def train(trial: Trial) -> None:
        began = time.monotonic()
        for step in trial.steps():
            trial.report({"score": step})
        while time.monotonic() - began < 0.02:  # shorter than the time between two messages
            pass
        took.append(time.monotonic() - began)

    assert outcome(attempt(office, train)) == ("done", "", "")
    assert [(news.began is not None, len(news.rows), news.ended is not None) for news in office.told] == [(True, 2, True)]
    found = office.history.trials[0].attempts[0]
    assert found.t_began is not None
    assert found.t_ended is not None
    assert found.t_ended - found.t_began > 0.9 * took[0]
    assert cost.slot_hours(office.history, 0.0) * 3600 > 0.9 * took[0]


# The reporter by itself

ASSIGNMENT = Assignment(trial=0, attempt=1, config={}, seed=0, until=None)
ARRIVAL = Arrival(node="node", task_run="run-0")


class Ear:
    """A desk that notes what it hears; waits in `tell` while the gate is shut."""

    def __init__(self) -> None:
        self.heard: list[Progress] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def tell(self, progress: Progress) -> Order:
        self.heard.append(progress)
        self.entered.set()
        assert self.gate.wait(20)
        return Order()

    @property
    def steps(self) -> list[int]:
        return [row.step for news in self.heard for row in news.rows]


def test_rows_wait_while_the_coordinator_is_away_and_then_so_does_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "MOST_NUMBERS", 10)
    ear = Ear()
    ear.gate.clear()
    reporter = Reporter(ear, ASSIGNMENT, ARRIVAL, list)
    reached: list[int] = []

    def train() -> None:
        for step in range(1, 26):
            reporter.add(Row(step, 0.0, {}))
            reached.append(step)

    thread = threading.Thread(target=train)
    thread.start()
    assert ear.entered.wait(20)
    assert reached == list(range(1, 10)), "the tenth waits"
    ear.gate.set()
    thread.join(20)
    reporter.flush()
    assert ear.steps == list(range(1, 26))


def test_a_message_is_bounded_by_its_numbers_and_the_last_one_brings_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "MESSAGE_NUMBERS", 30)
    ear = Ear()
    kept = [Saved(t=1.0, trial=0, attempt=1, step=7, manifest="m", size=1)]
    reporter = Reporter(ear, ASSIGNMENT, ARRIVAL, lambda: [kept.pop()] if kept else [])
    for step in range(1, 8):
        reporter.add(Row(step, 0.0, {f"m{n}": 1.0 for n in range(9)}))
    reporter.flush(ended=Ended(t=2.0, trial=0, attempt=1, outcome="done", step=7))
    assert [[row.step for row in news.rows] for news in ear.heard] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [news.began is not None for news in ear.heard] == [True, False, False]
    assert [len(news.saved) for news in ear.heard] == [0, 0, 1], "a step is in the log before its checkpoint"
    assert [news.ended is not None for news in ear.heard] == [False, False, True]


def test_no_row_is_lost_or_overtaken_wherever_a_flush_falls_into_a_report() -> None:
    """A flush in another thread at every bytecode of `add`, one after the other."""

    def flushed_before(nth: int) -> tuple[int, list[int]]:
        ear = Ear()
        reporter = Reporter(ear, ASSIGNMENT, ARRIVAL, list)
        reporter.add(Row(1, 0.0, {}))
        count = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal count
            if frame.f_code is not Reporter.add.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                count += 1
                if count == nth:
                    other = threading.Thread(target=reporter.flush)
                    other.start()
                    other.join(20)
                    assert not other.is_alive()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            reporter.add(Row(2, 0.0, {}))
        finally:
            sys.settrace(before)
        reporter.add(Row(3, 0.0, {}))
        reporter.flush()
        return count, ear.steps

    opcodes, _ = flushed_before(0)
    assert opcodes > 10
    for nth in range(1, opcodes + 1):
        assert flushed_before(nth)[1] == [1, 2, 3], f"at bytecode {nth}"


def test_a_checkpoint_is_never_told_before_the_row_of_its_step() -> None:
    ear = Ear()

    def saved_meanwhile() -> list[Saved]:
        if reporter._rows or ear.heard:
            return []
        # Another thread reports step 1 and its checkpoint is written, all since this flush began.
        reporter.add(Row(1, 0.0, {}))
        return [Saved(t=0.0, trial=0, attempt=1, step=1, manifest="m", size=1)]

    reporter = Reporter(ear, ASSIGNMENT, ARRIVAL, saved_meanwhile)
    reporter.flush()
    reporter.flush()
    known: set[int] = set()
    for news in ear.heard:
        known |= {row.step for row in news.rows}
        assert {saved.step for saved in news.saved} <= known


def test_news_are_sent_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "FLUSH_SECONDS", 0.001)
    ear = Ear()
    reporter = Reporter(ear, ASSIGNMENT, ARRIVAL, list)
    reporter.start()
    reporter.add(Row(1, 0.0, {}))
    assert ear.entered.wait(20)
    reporter.stop()
    came = ear.heard[0].began
    assert came is not None
    assert msgspec.structs.replace(came, ago=0.0) == ARRIVAL
    assert all(news.began is None for news in ear.heard[1:])
    assert ear.steps == [1]
