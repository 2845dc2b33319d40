"""CatBoost: `CatBoostClassifier(**report.snapshots).fit(..., callbacks=[report])`; a step is one
iteration.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from regrow.integrations import reports
from regrow.integrations.installed import need
from regrow.tasks.process import temporary
from regrow.tasks.trial.trial import NotSaved, Trial, TrialEnd

need("catboost", "catboost")

SNAPSHOT = "snapshot"


def restored(trial: Trial) -> Path | None:
    """Return CatBoost's snapshot in the checkpoint, None at the beginning. `Report.snapshots` makes
    CatBoost continue from a copy of it.
    """
    return reports.restored(trial, SNAPSHOT)


class Report:
    """Reports what was measured at each iteration, as `DATA-METRIC` (`validation-Logloss`), and
    saves CatBoost's snapshot.

    `metric` names the one that is the experiment's metric; None: it has the same name. `snapshots`
    are the arguments with which CatBoost makes a snapshot after each iteration, and continues from
    the restored one. CatBoost does not call callbacks while it trains on a GPU.
    """

    def __init__(self, trial: Trial, metric: str | None = None) -> None:
        self._trial, self._metric, self._over = trial, metric, False
        self._room = tempfile.TemporaryDirectory(
            prefix="catboost-", dir=temporary.process_temp_dir(), ignore_cleanup_errors=True
        )
        self._snapshot = Path(self._room.name, SNAPSHOT)
        if (found := restored(trial)) is not None:
            shutil.copy(found, self._snapshot)  # a copy, since CatBoost writes to it
        self.snapshots: dict[str, Any] = {
            "train_dir": self._room.name,
            "allow_writing_files": True,
            "save_snapshot": True,
            "snapshot_file": str(self._snapshot),
            "snapshot_interval": 0,
        }

    def after_iteration(self, info: Any) -> bool:
        """Report an iteration (called by CatBoost); return whether to continue. CatBoost would
        treat a TrialEnd as an error.
        """
        if info.iteration <= self._trial.step:  # reported before, but not in the snapshot
            return True
        values = reports.latest(info.metrics)

        def stop() -> None:
            self._over = True

        try:
            reports.report(self._trial, values, self._metric, self._save, stop)
        except TrialEnd:
            return False
        return not self._over

    def _save(self, folder: Path) -> None:
        if not self._snapshot.exists():
            raise NotSaved("CatBoost has not made a snapshot; give it **report.snapshots")
        shutil.copy(self._snapshot, folder / SNAPSHOT)
