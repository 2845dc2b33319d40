"""Trials that continue from another one's weights, with real attempts and checkpoints."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.stores.local import LocalStore
from regrow.search.events import Began, Dropped, Saved
from regrow.search.lifecycle import TrialState
from regrow.tasks.checkpoint.saving import restore
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Killed, sent
from tests.unit.scripted import clone
from tests.unit.stores import NoReads, corrupt
from tests.unit.told import kept
from tests.unit.works import MakeWorks, writing


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_clone_has_the_sources_weights_at_its_own_step(
    works: MakeWorks, kind: str, tmp_path: Path
) -> None:
    store: Any = None if kind == "memory" else LocalStore(tmp_path)
    at = works({"1:3": clone(0, 0.25)}, store=store)
    at.run()
    ended = at.run().ended
    assert (ended.outcome, ended.step) == ("paused", 3)
    at.run()
    assert at.began[-1] == (1, 2, 3, " 0.1 0.2 0.3 0.4 0.5 0.6")
    trial = at.office.history.trials[1]
    assert list(trial.curve.lineage()) == [1, 1, 1, 2, 2, 2]
    assert at.office.history.lost_steps == 0
    newest = trial.checkpoints[6].manifest
    found = restore(at.office.store, [newest], tmp_path / "found")
    assert (tmp_path / "found" / "weights").read_text() == " 0.1 0.2 0.3 0.4 0.5 0.6 1.4 1.5 1.6"
    assert found.step == 6


def test_the_weights_that_will_be_replaced_are_not_saved(works: MakeWorks) -> None:
    at = works({"1:3": clone(0)}, checkpoint={"every_steps": 2})
    at.run()
    at.run()
    assert [e.step for e in at.office.events if isinstance(e, Saved) and e.trial == 1] == [2]


def test_a_source_whose_newest_checkpoint_is_corrupt_gives_the_one_before(works: MakeWorks) -> None:
    at = works({"1:3": clone(0, 0.25)})
    at.run()
    at.run()
    source = at.office.history.trials[0]
    corrupt(at.office.store, source.checkpoints[6].manifest)
    at.run()
    assert at.began[-1] == (1, 2, 3, " 0.1 0.2 0.3 0.4 0.5")
    began = [e for e in at.office.events if isinstance(e, Began)][-1]
    assert len(began.skipped) == 1
    assert source.checkpoints[6].manifest in began.skipped[0]


@pytest.mark.parametrize(("every", "step"), [(2, 2), (3, 3)])
def test_a_source_without_a_sound_checkpoint_leaves_the_trial_its_own(
    works: MakeWorks, every: int, step: int
) -> None:
    """Its own newest is of step 2, so that step 3 is done again, or (every 3) of the very step of
    the decision.
    """
    at = works({"1:3": clone(0, 0.25)}, checkpoint={"every_steps": every})
    at.run()
    at.run()
    for saved in at.office.history.trials[0].checkpoints.values():
        corrupt(at.office.store, saved.manifest)
    at.run()
    assert at.began[-1][:3] == (1, 2, step)
    assert at.began[-1][3].endswith(f" 1.{step}")
    trial = at.office.history.trials[1]
    assert (trial.state, trial.clone, at.office.history.pinned) == (TrialState.DONE, None, set())
    assert [row.step for _, row in kept(at.office.events)[1]] == [1, 2, 3, 4, 5, 6]


def test_a_clones_blobs_survive_that_the_source_drops_its_checkpoint(
    works: MakeWorks, tmp_path: Path
) -> None:
    """The source keeps one checkpoint. It is dropped, and deleted, after the clone was taken; the
    clone restores from its blobs.
    """
    at = works({"1:3": clone(0)}, slots=2, checkpoint={"keep_last": 1, "keep_best": 0})
    at_three, cloned = threading.Event(), threading.Event()

    def source(trial: Trial) -> None:
        for step in trial.steps():
            if step == 4:
                sent(trial)
                at_three.set()
                assert cloned.wait(20)
            trial.report({"score": float(step)}, checkpoint=writing(f"source at {step}"))
            sent(trial)

    def cloner(trial: Trial) -> None:
        if trial.number == 0:
            return source(trial)
        weights = (trial.restored / "weights").read_text() if trial.restored else ""
        at.began.append((1, trial.attempt, trial.step, weights))
        for step in trial.steps():
            if step == 4 and trial.attempt == 2:
                cloned.set()
                other.join(20)
                raise Killed
            trial.report({"score": float(step)}, checkpoint=writing(weights))
        return None

    first, second = at.office.instructions().submit
    other = threading.Thread(target=at.run, args=(first, cloner))
    other.start()
    assert at_three.wait(20)
    assert at.run(second, cloner).ended.outcome == "paused"
    with pytest.raises(Killed):
        at.run(train=cloner)
    dropped = {
        m for e in at.office.events if isinstance(e, Dropped) and e.trial == 0 for m in e.manifests
    }
    copy = at.office.history.trials[1].checkpoints[3]
    assert copy.source in dropped
    assert copy.source not in at.office.store.list("manifests/"), "it is gone from the store"
    at.office.lost(1, 2)
    at.run(train=cloner)
    assert at.began == [(1, 1, 0, ""), (1, 2, 3, "source at 3"), (1, 3, 3, "source at 3")]
    assert at.office.history.trials[1].state is TrialState.DONE


def test_a_store_that_is_away_when_a_clone_is_to_be_taken_supersedes_nothing(
    works: MakeWorks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.tasks.attempt.attempt.PATIENCE_SECONDS", 0.1)
    at = works({"1:3": clone(0)})
    at.run()
    at.run()
    office, there = at.office, at.office.store
    assignment = office.submitted()
    ended = at.run(assignment, store=NoReads()).ended
    assert (ended.outcome, ended.cause) == ("failed", "infrastructure")
    assert office.store is there
    assert office.history.trials[1].step == 3
    at.run()
    assert at.began[-1] == (1, 3, 3, " 0.1 0.2 0.3 0.4 0.5 0.6")
