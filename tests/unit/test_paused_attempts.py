"""Trials that pause, are promoted and restarted, with real attempts and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from regrow.search.events import Decided, Opened
from regrow.search.lifecycle import TrialState
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Killed, sent
from tests.unit.scripted import PAUSE, RESTART
from tests.unit.told import kept
from tests.unit.works import MakeWorks


def test_a_pause_saves_a_checkpoint_at_its_very_step_and_no_step_is_done_twice(
    works: MakeWorks,
) -> None:
    at = works({"0:2": PAUSE, "1:2": PAUSE}, checkpoint={"every_steps": 100})
    ended = at.run().ended
    assert (ended.outcome, ended.step, ended.message) == ("paused", 2, "its turn is over")
    assert list(at.office.history.trials[0].checkpoints) == [2]
    at.finish()
    assert (0, 2, 2, " 0.1 0.2") in at.began
    assert at.office.history.lost_steps == 0
    assert [trial.state for trial in at.office.history.trials] == [TrialState.DONE] * 2


def test_without_checkpoints_of_the_trainable_a_promoted_trial_starts_over_and_is_not_paused_again(
    works: MakeWorks,
) -> None:
    at = works({"0:2": PAUSE}, trials=1)

    def plain(trial: Trial) -> None:
        at.began.append((trial.number, trial.attempt, trial.step, ""))
        for step in trial.steps():
            trial.report({"score": float(step)})

    assert at.run(train=plain).ended.outcome == "paused"
    assert at.run(train=plain).ended.outcome == "done"
    assert at.began == [(0, 1, 0, ""), (0, 2, 0, "")]
    assert [row.step for _, row in kept(at.office.events)[0]] == [1, 2, 3, 4, 5, 6]


def test_killed_between_the_pause_and_its_checkpoint_it_goes_on_from_the_one_before(
    works: MakeWorks,
) -> None:
    at = works({"0:3": PAUSE}, trials=1, checkpoint={"every_steps": 2})

    def killed(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3:
                sent(trial)

            def save(folder: Path, step: int = step) -> None:
                if step == 3:  # the checkpoint that the pause asks for
                    raise Killed
                (folder / "weights").write_text(f" 0.1 0.{step}")

            trial.report({"score": float(step)}, checkpoint=save)

    with pytest.raises(Killed):
        at.run(train=killed)
    at.office.lost(0, 1)
    assert at.run().ended.outcome == "done"
    assert at.began == [(0, 2, 2, " 0.1 0.2")]
    assert at.office.history.lost_steps == 1
    assert sum(isinstance(event, Decided) for event in at.office.events) == 1


def test_the_coordinator_dies_after_the_decision_and_the_pause_stands(works: MakeWorks) -> None:
    at = works({"0:2": PAUSE}, options={"last": True}, trials=1)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report(
                {"score": float(step)},
                checkpoint=lambda folder: (folder / "weights").write_text("w"),
            )
            if step == 2:
                at.office.open("driver-1")

    assert at.run(train=train).ended.outcome == "paused"
    assert [e.by for e in at.office.events if isinstance(e, Opened)] == ["driver", "coordinator"]
    assert at.run().ended.outcome == "done"
    assert at.office.history.lost_steps == 0


def test_a_restart_goes_on_from_its_own_checkpoint_of_that_step(works: MakeWorks) -> None:
    at = works({"0:3": RESTART}, trials=1, checkpoint={"every_steps": 100})
    assert at.run().ended.outcome == "paused"
    at.run()
    assert at.began == [(0, 1, 0, ""), (0, 2, 3, " 0.1 0.2 0.3")]
    assert at.office.history.lost_steps == 0
