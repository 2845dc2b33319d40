"""One attempt from its assignment to its outcome, against a real coordinator and a store in memory:
steps, decisions, restoring.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regrow.search.events import Began, Decided
from regrow.search.lifecycle import TrialState
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.trial.trial import Trial
from tests.memory_store import MemoryStore
from tests.unit.attempting import (
    Attempting,
    Killed,
    killed_after,
    outcome,
    sent,
    steadily,
    steps,
)
from tests.unit.office import MakeOffice

# Steps and decisions


def test_a_trial_runs_to_its_last_step(make_office: MakeOffice, attempt: Attempting) -> None:
    office = make_office()
    assert outcome(attempt(office, steadily)) == ("done", "", "")
    assert steps(office) == [1, 2, 3, 4, 5]
    assert office.history.trials[0].state is TrialState.DONE
    assert office.instructions().finished == "finished"


@pytest.mark.parametrize(("schedule", "messages"), [("fifo", 1), ("asha", 3)])
def test_the_coordinator_is_asked_only_where_a_decision_is_due(
    make_office: MakeOffice, attempt: Attempting, schedule: str, messages: int
) -> None:
    office = make_office(schedule=schedule, max_steps=9)
    attempt(office, lambda trial: [trial.report({"score": 1.0}) for _ in trial.steps()])
    assert len(office.told) == messages
    assert [len(news.rows) for news in office.told] == ([9] if schedule == "fifo" else [1, 2, 6])
    assert steps(office) == list(range(1, 10))


def test_a_trial_that_is_stopped_at_a_rung_ends_there(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(schedule="asha", max_steps=9, trials=2)
    attempt(office, steadily)
    after: list[int] = []

    def worse(trial: Trial) -> None:
        for _ in trial.steps():
            trial.report({"score": 0.0})
        after.append(trial.step)

    assert outcome(attempt(office, worse)) == ("stopped", "", "place 2 of 2 at rung 1, 1 go on")
    assert after == [1], "the code after the loop runs"
    assert office.history.trials[1].state is TrialState.STOPPED


def test_a_trainable_with_a_loop_of_its_own_is_unwound(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(schedule="asha", max_steps=9, trials=2)
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


def test_phases_go_on_one_after_the_other(make_office: MakeOffice, attempt: Attempting) -> None:
    office = make_office(schedule="asha", max_steps=9)

    def phases(trial: Trial) -> None:
        for end in (2, 4, 20):
            for step in trial.steps(until=end):
                trial.report({"score": step})

    assert attempt(office, phases).ended.outcome == "done"
    assert steps(office) == list(range(1, 10))
    assert [e.step for e in office.events if isinstance(e, Decided)] == [1, 3]


def test_a_loop_within_the_loop_does_the_steps_of_both(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=3)

    def nested(trial: Trial) -> None:
        for _ in trial.steps():
            for step in trial.steps():
                trial.report({"score": step})

    assert attempt(office, nested).ended.outcome == "done"
    assert steps(office) == [1, 2, 3]


@pytest.mark.parametrize("left", [False, True])
def test_the_last_step_of_a_loop_within_is_not_that_of_the_loop_around_it(
    make_office: MakeOffice, attempt: Attempting, *, left: bool
) -> None:
    office = make_office(max_steps=5)
    around: list[int] = []

    def pairs(trial: Trial) -> None:
        for first in trial.steps():
            around.append(first)
            for step in trial.steps(until=first + (2 if left else 1)):
                trial.report({"score": step})
                if left and step > first:
                    break

    assert attempt(office, pairs).ended.outcome == "done"
    assert steps(office) == [1, 2, 3, 4, 5]
    assert around == [1, 3, 5]


def test_a_rung_at_the_end_of_a_phase_is_judged_before_the_next(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(schedule="asha", max_steps=9, trials=2)
    attempt(office, steadily)

    def phases(trial: Trial) -> None:
        for end in (1, 9):
            for _ in trial.steps(until=end):
                trial.report({"score": 0.0})

    attempt(office, phases)
    assert steps(office, 1) == [1]


# Restoring


def test_a_restored_trial_goes_on_at_the_next_step(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(checkpoint={"every_steps": 2})
    seen: list[tuple[int, str, int]] = []
    with pytest.raises(Killed):
        attempt(office, killed_after(3))
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
    make_office: MakeOffice, attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.tasks.attempt.attempt.PATIENCE_SECONDS", 0.1)
    office = make_office()
    with pytest.raises(Killed):
        attempt(office, killed_after(3))
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


def test_a_trial_that_was_lost_after_its_last_step_is_done_without_another(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=2)
    with pytest.raises(Killed):
        attempt(office, killed_after(2))
    office.lost(0, 1)
    assert attempt(office, steadily).ended.outcome == "done"
    assert steps(office) == [1, 2]


# Checkpoints that are not saved


def test_a_checkpoint_that_can_never_be_saved_fails_its_trial_and_what_was_reported_counts(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(checkpoint={"every_steps": 2})

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=lambda folder: os.mkfifo(folder / "pipe"))
            if step == 2:
                sent(trial)

    said = "the checkpoint of step 2 cannot be saved: 'pipe' is neither a file nor a folder; don't save it"
    assert outcome(attempt(office, train)) == ("failed", "error", said)
    assert steps(office) == [1, 2], "it is not trained on for nothing"
    assert office.history.trials[0].state is TrialState.FAILED


def test_a_training_that_goes_on_regardless_fails_at_its_end(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(checkpoint={"every_steps": 5})

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report(
                {"score": step},
                checkpoint=lambda folder: (folder / "out").symlink_to("/etc/hostname"),
            )

    finished = attempt(office, train)
    assert outcome(finished)[:2] == ("failed", "error")
    assert (
        "the checkpoint of step 5 cannot be saved: 'out' is a link out of the folder"
        in finished.ended.message
    )
    assert steps(office) == [1, 2, 3, 4, 5]


def test_a_training_whose_last_checkpoint_was_not_saved_is_tried_again(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office()

    class Odd(MemoryStore):
        def create(self, key: str, data: bytes | Path) -> None:
            if key.endswith(f"{odd:010d}.json"):
                raise OSError("Input/output error")
            super().create(key, data)

    odd = 4
    assert attempt(office, steadily, store=Odd()).ended.outcome == "done"
    office, odd = make_office(), 5
    said = "the checkpoint of step 5, its last, was not saved: OSError: Input/output error"
    assert outcome(attempt(office, steadily, store=Odd())) == ("failed", "infrastructure", said)
    assert steps(office) == [1, 2, 3, 4, 5]
