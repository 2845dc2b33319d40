"""The reporter by itself: rows and checkpoints reach the coordinator in order, bounded, and in the
background.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import msgspec
import pytest

from regrow.search.events import Ended, Place, Row, Saved
from regrow.tasks.ports.messages import Assignment, CoordinatorGone, Progress, Reply
from regrow.tasks.trial import reporter as reporting
from regrow.tasks.trial.reporter import Reporter
from tests.unit.office import began_at


def test_an_attempt_whose_coordinator_is_gone_is_fenced() -> None:
    class Nobody:
        def report(self, progress: Progress) -> Reply:
            raise CoordinatorGone("no answer")

    reporter = Reporter(Nobody(), ASSIGNMENT, ARRIVAL, list)
    reporter.add(Row(1, 0.0, {"score": 1.0}))
    assert reporter.flush().reason == "fenced"


ASSIGNMENT = Assignment(trial=0, attempt=1, config={}, seed=0, until=None)
ARRIVAL = began_at(Place("node"), task_run="run-0")


class Ear:
    """A desk that notes what it hears; waits in `tell` while the gate is shut."""

    def __init__(self) -> None:
        self.heard: list[Progress] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def report(self, progress: Progress) -> Reply:
        self.heard.append(progress)
        self.entered.set()
        assert self.gate.wait(20)
        return Reply()

    @property
    def steps(self) -> list[int]:
        return [row.step for news in self.heard for row in news.rows]


def test_rows_wait_while_the_coordinator_is_away_and_then_so_does_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_message_is_bounded_by_its_numbers_and_the_last_one_brings_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporting, "MESSAGE_NUMBERS", 30)
    ear = Ear()
    kept = [Saved(t=1.0, trial=0, attempt=1, step=7, manifest="m", size=1)]
    reporter = Reporter(ear, ASSIGNMENT, ARRIVAL, lambda: [kept.pop()] if kept else [])
    for step in range(1, 8):
        reporter.add(Row(step, 0.0, {f"m{n}": 1.0 for n in range(9)}))
    reporter.flush(ended=Ended(t=2.0, trial=0, attempt=1, outcome="done", step=7))
    assert [[row.step for row in news.rows] for news in ear.heard] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [news.began is not None for news in ear.heard] == [True, False, False]
    assert [len(news.saved) for news in ear.heard] == [0, 0, 1], (
        "a step is in the log before its checkpoint"
    )
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


def test_the_coordinator_sets_the_pace_and_who_waits_is_urgent() -> None:
    class Slow(Ear):
        def report(self, progress: Progress) -> Reply:
            super().report(progress)
            return Reply(pace=2.5)

    class Wake(threading.Event):
        """Notes for how long it is waited for, and lets three pauses go by, the second of which is
        cut short.
        """

        waits: list[float | None] = []  # noqa: RUF012 - one object alone

        def wait(self, timeout: float | None = None) -> bool:
            self.waits.append(timeout)
            if len(self.waits) > 3:
                reporter._stop.set()
            reporter.add(Row(len(self.waits), 0.0, {}))
            return len(self.waits) == 2

    ear = Slow()
    reporter = Reporter(ear, ASSIGNMENT, ARRIVAL, list)
    reporter._wake = Wake()
    reporter._run()
    assert reporter._wake.waits == [reporting.FLUSH_SECONDS, 2.5, 2.5, 2.5]
    assert [news.urgent for news in ear.heard] == [False, True, False]
    reporter.flush()
    assert ear.heard[-1].urgent


@pytest.mark.parametrize(
    ("name", "choice"),
    [(5, "a"), ("x", "\ud800"), ("\ud800", "a"), ("x", object())],
    ids=["number", "half a pair", "half a pair as name", "object"],
)
def test_what_no_log_can_hold_is_refused_where_it_is_asked_for_and_not_sent(
    name: Any, choice: Any
) -> None:
    ear = Ear()
    reporter = Reporter(ear, ASSIGNMENT, ARRIVAL, list)
    with pytest.raises(ValueError, match="names of parameters are text, and choices plain JSON"):
        reporter.value(name, {"attributes": {"choices": ["b", choice]}})
    assert not ear.heard
