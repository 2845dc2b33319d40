"""What an attempt does where it lost its lease, and where its coordinator comes back or hears
things twice.
"""

from __future__ import annotations

import time

from regrow.search.events import Ended, Saved
from regrow.search.history import cost
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.ports.messages import Progress, Reply
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Attempting, outcome, save, saving, sent, steps
from tests.unit.office import MakeOffice


def test_a_fenced_attempt_ends_and_sends_nothing_more(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office()
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
    assert finished.reply.reason == "fenced"
    assert told == [len(office.told)]
    assert steps(office) == [1, 2]
    assert [e.outcome for e in office.events if isinstance(e, Ended)] == ["lost"]


def test_the_same_news_told_twice_changes_nothing(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(schedule="asha", max_steps=9, checkpoint={"keep_last": 1, "keep_best": 0})
    again: list[tuple[Reply, Reply]] = []
    real = office.report

    def twice(progress: Progress) -> Reply:
        reply = real(progress)
        before = office.events
        again.append((reply, office.wait(office.coordinator.report(progress))))
        assert office.events == before
        return reply

    office.report = twice  # type: ignore[method-assign]  # the network repeats what it delivers

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(step))
            if step % 2:
                assert isinstance(trial._writer, CheckpointWriter)
                trial._writer.drain()

    assert attempt(office, train).ended.outcome == "done"
    assert len(again) >= 3
    assert all((one.until, one.reason) == (two.until, two.reason) for one, two in again)
    assert len([e for e in office.events if isinstance(e, Saved)]) == 9


def test_a_coordinator_that_comes_back_goes_on_where_it_was(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(schedule="asha", max_steps=9, trials=2)

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
    assert history.sessions == 1


def test_a_trial_that_is_over_before_anything_was_sent_has_its_seconds_all_the_same(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    """Its beginning, its rows and its end travel in one message."""
    office = make_office(max_steps=2)
    took: list[float] = []

    def train(trial: Trial) -> None:
        began = time.monotonic()
        for step in trial.steps():
            trial.report({"score": step})
        while time.monotonic() - began < 0.02:  # shorter than the time between two messages
            pass
        took.append(time.monotonic() - began)

    assert outcome(attempt(office, train)) == ("done", "", "")
    assert [
        (news.began is not None, len(news.rows), news.ended is not None) for news in office.told
    ] == [(True, 2, True)]
    found = office.history.trials[0].attempts[0]
    assert found.t_began is not None
    assert found.t_ended is not None
    assert found.t_ended - found.t_began > 0.9 * took[0]
    assert cost.of(office.history, 0.0).hours * 3600 > 0.9 * took[0]
