"""The study's trials in memory, as Optuna's own code reads them; the log is the truth."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.study import StudyDirection

from regrow.infra.exports.optuna_study import Frozen
from regrow.search.samplers.optuna_private import OneStudy
from regrow.search.samplers.optuna_study_model import quiet


class Mirror(OneStudy):
    """A storage of one study."""

    def __init__(self, name: str, directions: Sequence[StudyDirection]) -> None:
        super().__init__()
        with quiet():
            self.create_new_study(directions, name)

    def take(self, trials: Frozen) -> None:
        """All trials as they are now."""
        for trial in trials.all():
            self.put(trial)
