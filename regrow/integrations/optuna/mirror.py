"""The study's trials in memory, for Optuna's code; the log is authoritative."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.study import StudyDirection

from regrow.search.samplers.optuna_private import OneStudy
from regrow.search.samplers.optuna_study_model import quiet
from regrow.show.exports.optuna_study import Frozen


class Mirror(OneStudy):
    """An Optuna storage of one study."""

    def __init__(self, name: str, directions: Sequence[StudyDirection]) -> None:
        super().__init__()
        with quiet():
            self.create_new_study(directions, name)

    def take(self, trials: Frozen) -> None:
        """Replace all trials by their current state."""
        for trial in trials.all():
            self.put(trial)
