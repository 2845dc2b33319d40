"""LightGBM: `lightgbm.train(..., callbacks=[Report(trial)], init_model=restored(trial))`; a step is one round of boosting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regrow.integrations.installed import need

need("lightgbm", "lightgbm")

from lightgbm.callback import EarlyStopException  # noqa: E402 - after it is known to be there

from regrow.integrations import reports  # noqa: E402 - the same
from regrow.tasks.trial import Trial  # noqa: E402 - the same

MODEL = "model.txt"


def restored(trial: Trial) -> Path | None:
    """The model to go on with, for `init_model=`; None at the beginning. Train `trial.max_steps - trial.step` rounds more."""
    return reports.restored(trial, MODEL)


class Report:
    """Reports each round what `valid_sets` measured, as `DATA-METRIC` (`valid_0-l2`), and saves the model.

    `metric` names the one that is the experiment's metric; None: it has the same name. What `bagging_fraction` and
    `feature_fraction` draw begins anew where a trial goes on: LightGBM's generators are not in its model.
    """

    order = 25  # LightGBM's own: after record_evaluation (20), before early_stopping (30), which ends the round

    def __init__(self, trial: Trial, metric: str | None = None) -> None:
        self._trial, self._metric = trial, metric

    def __call__(self, env: Any) -> None:
        """What LightGBM calls after each round."""

        def save(folder: Path) -> None:
            env.model.save_model(folder / MODEL, num_iteration=-1)  # all rounds, not up to the best one

        def stop() -> None:
            raise EarlyStopException(env.iteration, env.evaluation_result_list)

        values = {f"{data}-{name}": value for data, name, value, *_ in env.evaluation_result_list or ()}
        reports.report(self._trial, values, self._metric, save, stop)
