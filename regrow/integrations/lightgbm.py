"""LightGBM: `lightgbm.train(..., callbacks=[Report(trial)], init_model=restored(trial))`; a step is
one round of boosting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regrow.integrations.installed import need

need("lightgbm", "lightgbm")

from lightgbm.callback import EarlyStopException  # noqa: E402 - after the check that it is installed

from regrow.integrations import reports  # noqa: E402 - after the check that LightGBM is installed
from regrow.tasks.trial.trial import Trial  # noqa: E402 - after the check that LightGBM is installed

MODEL = "model.txt"


def restored(trial: Trial) -> Path | None:
    """Return the model to continue with, for `init_model=`; None at the beginning. Train
    `trial.max_steps - trial.step` more rounds.
    """
    return reports.restored(trial, MODEL)


class Report:
    """Reports what `valid_sets` measured at each round, as `DATA-METRIC` (`valid_0-l2`), and saves
    the model.

    `metric` names the one that is the experiment's metric; None: it has the same name. The random
    draws of `bagging_fraction` and `feature_fraction` start again when a trial is resumed:
    LightGBM's generators are not in its model.
    """

    # LightGBM's attribute: after record_evaluation (20), before early_stopping (30), which ends the
    # round
    order = 25

    def __init__(self, trial: Trial, metric: str | None = None) -> None:
        self._trial, self._metric = trial, metric

    def __call__(self, env: Any) -> None:
        """Report a round; LightGBM calls it."""

        def save(folder: Path) -> None:
            # All rounds, not only up to the best one.
            env.model.save_model(folder / MODEL, num_iteration=-1)

        def stop() -> None:
            raise EarlyStopException(env.iteration, env.evaluation_result_list)

        values = {
            f"{data}-{name}": value for data, name, value, *_ in env.evaluation_result_list or ()
        }
        reports.report(self._trial, values, self._metric, save, stop)
