"""Callbacks of a study, from the log of its session: each ended trial once, in the log's order."""

from __future__ import annotations

from pathlib import Path

import optuna

from regrow.infra.log.subscription import Batch
from regrow.infra.stores.local import LocalStore
from regrow.integrations.optuna.following import Follow
from regrow.integrations.optuna.mirror import Mirror
from regrow.search.events import Ended, encode
from regrow.search.lifecycle import TrialState
from tests.unit.figured import run


def test_a_callback_that_raises_ends_the_study_and_loses_no_event(tmp_path: Path) -> None:
    simulated = run(trials=6)
    told: list[int] = []

    def callback(trial: optuna.trial.FrozenTrial) -> None:
        told.append(trial.number)
        if len(told) == 3:
            raise ValueError("enough")

    store = LocalStore(tmp_path)
    follow = Follow(store, [callback], None)
    asked: list[str] = []
    lines = [encode(event) for event in simulated.events]
    mirror = Mirror("study", [optuna.study.StudyDirection.MAXIMIZE])
    with follow._coordinator.through(lambda name, *_: asked.append(name)):
        follow._apply_batch(
            mirror, Batch(segments=[(1, lines)], more=False, last=True, trouble=None)
        )
    ended = [event.trial for event in simulated.events if isinstance(event, Ended)]
    assert told == ended[:3]
    assert str(follow._raised) == "enough"
    assert "stop_study" in asked, "the session is asked to end"
    assert len(follow._history.by_state[TrialState.DONE]) == len(ended) == 6
