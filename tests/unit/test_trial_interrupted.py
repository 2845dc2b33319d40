"""An attempt that is told to leave, by a notice, an interruption or a decision, and saves what it
has.
"""

from __future__ import annotations

import pytest

from regrow.search.lifecycle import TrialState
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Attempting, outcome, save, saving, sent, steadily
from tests.unit.office import MakeOffice


@pytest.mark.parametrize("node", [False, True])
def test_a_notice_saves_a_checkpoint_at_the_step_under_way_and_the_next_attempt_goes_on_there(
    make_office: MakeOffice, attempt: Attempting, node: bool
) -> None:
    office = make_office(
        checkpoint={"every_steps": 100},
        retries={"infrastructure": 0 if node else 1, "preempted": int(node)},
    )

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3 and trial.attempt == 1:
                attempt.bench.notice("two minutes left", node)
            trial.report({"score": step}, checkpoint=saving(step))

    # a process alone that is told to end is not its node's end
    cause = "preempted" if node else "infrastructure"
    assert outcome(attempt(office, train)) == ("preempted", cause, "two minutes left")
    assert office.told[-1].draining == ("two minutes left" if node else "")
    assert attempt(office, train).ended.outcome == "done"
    first, second = office.history.trials[0].attempts
    assert (first.to_step, second.from_step, office.history.lost_steps) == (3, 3, 0)


def test_where_all_are_told_to_end_it_is_no_fault_of_the_trials_own(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(retries={"infrastructure": 0})

    def train(trial: Trial) -> None:
        for step in trial.steps():
            attempt.bench.notice("told to end", False)
            trial.report({"score": step}, checkpoint=save)
        office.interrupt()  # after the trial knows why it leaves

    # the explanation may reach it before its end
    told = outcome(attempt(office, train))
    assert told in (("preempted", "infrastructure", "told to end"), ("paused", "", "by the user"))
    trial = office.history.trials[0]
    assert (trial.attempts[-1].cause, trial.state) in (
        ("preempted", TrialState.LOST),
        ("", TrialState.PAUSED),
    )


def test_a_decision_to_stop_outweighs_a_notice(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(
        schedule={"asha": {"grace_period": 2, "reduction_factor": 2}},
        max_steps=4,
        trials=2,
        slots=1,
    )
    assert attempt(office, steadily).ended.outcome == "done"

    def worse(trial: Trial) -> None:
        for step in trial.steps():
            if step == 2:
                attempt.bench.notice("two minutes left", False)
            trial.report({"score": -100.0}, checkpoint=saving(step))

    ended = attempt(office, worse).ended
    assert ended.outcome in ("stopped", "preempted")
    assert office.history.trials[1].state is TrialState.STOPPED


@pytest.mark.parametrize(("every", "saved"), [(100, [3]), (1, [1, 2, 3])])
def test_an_interruption_saves_a_checkpoint_at_the_step_under_way(
    make_office: MakeOffice, attempt: Attempting, every: int, saved: list[int]
) -> None:
    office = make_office(checkpoint={"every_steps": every, "keep_last": 9})

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3:
                office.interrupt()
                sent(trial)
            trial.report({"score": step}, checkpoint=saving(step))

    assert outcome(attempt(office, train)) == ("paused", "", "by the user")
    trial = office.history.trials[0]
    assert (list(trial.checkpoints), trial.step) == (saved, 3)
    assert office.instructions().finished == "interrupted"
    office.open("driver-2")
    assert attempt(office, steadily).ended.outcome == "done"
    assert office.history.lost_steps == 0


def test_no_further_step_is_begun_where_the_last_is_saved(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office()
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


def test_a_trainable_that_ended_by_itself_is_done_though_it_was_told_to_pause(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=None)

    def converges(trial: Trial) -> None:
        for step in trial.steps():
            if step == 2:
                office.interrupt()
                sent(trial)
            trial.report({"score": step}, checkpoint=save)
            if step == 2:
                return

    assert attempt(office, converges).ended.outcome == "done"


def test_told_to_pause_and_to_stop_at_once_it_is_stopped_for_good(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(schedule="asha", max_steps=9, trials=2)
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
