"""XGBoost: `xgboost.train(..., callbacks=[Report(trial)], xgb_model=restored(trial))`; a step is
one round of boosting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regrow.integrations.installed import need

need("xgboost", "xgboost")

from xgboost.callback import TrainingCallback  # noqa: E402 - after the check that it is installed

from regrow.integrations import reports  # noqa: E402 - after the check that XGBoost is installed
from regrow.tasks.trial.trial import Trial  # noqa: E402 - after the check that XGBoost is installed

MODEL = "model.ubj"


def restored(trial: Trial) -> Path | None:
    """Return the model to continue with, for `xgb_model=`; None at the beginning. Train
    `trial.max_steps - trial.step` more rounds.
    """
    return reports.restored(trial, MODEL)


class Report(TrainingCallback):
    """Reports what `evals` measured at each round, as `DATA-METRIC` (`valid-logloss`), and saves
    the model.

    `metric` names the one that is the experiment's metric; None: it has the same name. The random
    draws of `subsample` and `colsample_*` start again when a trial is resumed: XGBoost's generator
    is not in its model.
    """

    def __init__(self, trial: Trial, metric: str | None = None) -> None:
        super().__init__()
        self._trial, self._metric, self._over = trial, metric, False

    def after_iteration(
        self, model: Any, epoch: int, evals_log: dict[str, dict[str, list[Any]]]
    ) -> bool:
        """See TrainingCallback; returns whether to stop."""

        def stop() -> None:
            self._over = True

        def save(folder: Path) -> None:
            model.save_model(folder / MODEL)

        reports.report(self._trial, reports.latest(evals_log), self._metric, save, stop)
        return self._over
