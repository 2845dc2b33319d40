"""Attempts that hang, and trials that have had their time."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import pytest

from regrow.search import durations
from regrow.search.errors import SpecError
from regrow.search.lifecycle import TrialState
from regrow.search.spec import PER_SESSION, Spec
from regrow.tasks.attempt import attempt as attempts
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Attempting, outcome, save, sent
from tests.unit.office import GatedStore, MakeOffice, Office
from tests.unit.simulated import SPEC


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What trainables hang in here; it ends where the worker would be killed."""
    event = threading.Event()

    def leave(code: int) -> None:
        assert code == attempts.STUCK_EXIT
        event.set()

    monkeypatch.setattr(os, "_exit", leave)
    return event


def hanging(stuck: threading.Event, *, at: int) -> Any:
    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == at:
                assert stuck.wait(60)
            trial.report({"score": step / 10}, checkpoint=save)
            sent(trial)

    return train


def ends(office: Office) -> list[tuple[str | None, str, str]]:
    return [(a.outcome, a.cause, a.message) for a in office.history.trials[0].attempts]


def test_an_attempt_that_reports_nothing_for_so_long_is_lost_and_goes_on_from_its_checkpoint(
    make_office: MakeOffice,
    attempt: Attempting,
    stuck: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    office = make_office(stall="0.3s", max_steps=3, checkpoint={"every_steps": 1})
    attempt(office, hanging(stuck, at=3))
    assert ends(office)[0] == ("lost", "stalled", "it reported nothing for 0.3 s")
    (told,) = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert told.startswith(
        "trial 0: it reported nothing for 0.3 s. What its threads are doing:\nwhere it trains:\n"
    )
    assert "assert stuck.wait(60)" in told
    assert "run_attempt" not in told
    following = office.submitted()
    assert (following.attempt, len(following.checkpoints)) == (2, 2)
    stuck.clear()
    assert outcome(attempt(office, hanging(stuck, at=99), following)) == ("done", "", "")
    assert list(office.history.trials[0].curve.lineage()) == [1, 1, 2]


def test_the_time_before_the_first_report_counts_and_a_trial_is_given_up_after_its_budget(
    make_office: MakeOffice, attempt: Attempting, stuck: threading.Event
) -> None:
    office = make_office(stall=0.2, retries={"stalled": 0})
    attempt(office, hanging(stuck, at=1))
    assert ends(office) == [("lost", "stalled", "it reported nothing for 0.2 s")]
    assert office.history.trials[0].state is TrialState.FAILED


def test_who_waits_for_the_coordinator_or_the_store_does_not_hang(
    make_office: MakeOffice, attempt: Attempting, stuck: threading.Event
) -> None:
    office = make_office(stall=0.3, max_steps=2)
    store = office.store
    assert isinstance(store, GatedStore)
    opened = threading.Timer(1.0, store.gate.set)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 1:
                store.gate.clear()
                opened.start()
            trial.report({"score": 0.1})
            trial._reporter.flush()

    assert outcome(attempt(office, train)) == ("done", "", "")
    assert not stuck.is_set()


def test_a_trial_that_has_had_its_time_is_done_at_its_next_report_with_a_checkpoint_of_it(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(
        stop={"trial": {"hours": 1.0}}, checkpoint={"every_steps": 100}, max_steps=50
    )

    def train(trial: Trial) -> None:
        assert trial._deadline is not None
        for step in trial.steps():
            if step == 3:
                trial._deadline -= 3600.0
            trial.report({"score": 0.1}, checkpoint=save)

    assert outcome(attempt(office, train)) == ("done", "", "it had its 60 min")
    assert max(office.history.trials[0].checkpoints) == 3


def test_the_time_of_earlier_attempts_counts(
    make_office: MakeOffice, attempt: Attempting, stuck: threading.Event
) -> None:
    office = make_office(
        stall=0.3, max_steps=9, checkpoint={"every_steps": 1}, stop={"trial": {"hours": 1.0}}
    )
    attempt(office, hanging(stuck, at=2))
    (first,), following = office.history.trials[0].attempts[:1], office.submitted()
    assert first.t_began is not None
    assert first.t_ended is not None
    assert following.ran == first.t_ended - first.t_began > 0.3


@pytest.mark.parametrize(
    ("at", "end"),
    [
        (3, ("done", "", "it had its 0.36 s and did not react")),
        (1, ("failed", "error", "it had its 0.36 s and did not react; it never reported anything")),
    ],
)
def test_one_that_does_not_react_is_ended_all_the_same(
    make_office: MakeOffice,
    attempt: Attempting,
    stuck: threading.Event,
    at: int,
    end: tuple[str, str, str],
) -> None:
    office = make_office(stop={"trial": {"hours": 0.0001}}, checkpoint={"every_steps": 1})
    attempt(office, hanging(stuck, at=at))
    assert ends(office) == [end]
    assert office.history.trials[0].step == at - 1


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("10min", 600.0), ("90s", 90.0), ("2h", 7200.0), ("1.5 h", 5400.0), (45, 45.0)],
)
def test_stall_is_written_as_people_do(written: object, seconds: float) -> None:
    assert Spec.parse({**SPEC, "stall": written}).stall == seconds


def test_what_is_no_span_of_time_is_told() -> None:
    with pytest.raises(SpecError, match='write seconds, or text such as "10min", "90s" or "2h"'):
        Spec.parse({**SPEC, "stall": "soon"})


def test_a_condition_of_a_trial_at_the_top_is_told_where_it_belongs() -> None:
    with pytest.raises(SpecError, match=r"write it below stop: `stop: \{trial: \{hours: 2\}\}`"):
        Spec.parse({**SPEC, "trial": {"hours": 2}})


def test_both_may_change_from_session_to_session() -> None:
    assert {"stall", "stop", "retries"} <= set(PER_SESSION)


def test_spans_are_told_in_the_unit_that_people_would_use() -> None:
    assert [durations.in_words(span) for span in (0.5, 90, 600, 7200, 5400)] == [
        "0.5 s",
        "90 s",
        "10 min",
        "2 h",
        "90 min",
    ]
