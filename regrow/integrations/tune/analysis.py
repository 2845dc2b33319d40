"""`ExperimentAnalysis`, which `tune.run` returns, as views of the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regrow.integrations.tune.results import Result, ResultGrid
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame


class AnalyzedTrial:
    """A trial as `get_best_trial` returns it: config, last_result, trial_id, status, checkpoint."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.config, self.trial_id = result.config, result.trial_id
        self.last_result = result.metrics
        self.status = "ERROR" if result.error else "TERMINATED"
        self.path = self.local_path = result.path

    @property
    def checkpoint(self) -> Any:
        return self.result.checkpoint

    def __repr__(self) -> str:
        return self.trial_id


class ExperimentAnalysis:
    """See Ray's. Metric and mode may be omitted if the script has set them.

    Made of a ResultGrid, or of the path of an experiment, see `Tuner.restore`.
    """

    def __init__(
        self,
        experiment_checkpoint_path: str | ResultGrid,
        *,
        storage_filesystem: Any = None,
        trials: Any = None,
        default_metric: str | None = None,
        default_mode: str | None = None,
    ) -> None:
        if storage_filesystem is not None or trials is not None:
            raise UserError("ExperimentAnalysis takes the path of an experiment, and nothing else")
        found = experiment_checkpoint_path
        self._grid = found if isinstance(found, ResultGrid) else ResultGrid.from_path(str(found))
        self.default_metric, self.default_mode = default_metric, default_mode
        self.trials = [AnalyzedTrial(result) for result in self._grid]

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> AnalyzedTrial:
        """See ResultGrid.get_best_result."""
        metric, mode = metric or self.default_metric, mode or self.default_mode
        best = self._grid.get_best_result(metric, mode, scope, filter_nan_and_inf)
        return next(trial for trial in self.trials if trial.result is best)

    def get_best_config(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> dict[str, Any]:
        return self.get_best_trial(metric, mode, scope, filter_nan_and_inf).config

    def get_best_checkpoint(
        self, trial: AnalyzedTrial, metric: str | None = None, mode: str | None = None
    ) -> Any:
        """Return the best of a trial's retained checkpoints."""
        metric, mode = metric or self.default_metric, mode or self.default_mode
        if metric is None or mode is None:
            raise ValueError("no metric or mode is given")
        return trial.result.get_best_checkpoint(metric, mode)

    def get_last_checkpoint(
        self,
        trial: AnalyzedTrial | None = None,
        metric: str = "training_iteration",
        mode: str = "max",
    ) -> Any:
        """Return the last checkpoint of a trial, None: of the best one by this metric."""
        return (trial or self.get_best_trial(metric, mode)).checkpoint

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> DataFrame:
        return self._grid.get_dataframe(metric, mode)

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """Return the configurations by trial; `prefix`: with `config/` before each name."""
        before = "config/" if prefix else ""
        return {
            trial.trial_id: {f"{before}{name}": value for name, value in trial.config.items()}
            for trial in self.trials
        }

    @property
    def best_trial(self) -> AnalyzedTrial:
        """The best trial by the script's metric and mode; raises ValueError if it set none."""
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any]:
        return self.best_trial.config

    @property
    def best_result(self) -> dict[str, Any]:
        """Last report of best_trial."""
        return self.best_trial.last_result

    @property
    def best_checkpoint(self) -> Any:
        """Best retained checkpoint of best_trial."""
        return self.get_best_checkpoint(self.best_trial)

    @property
    def best_dataframe(self) -> DataFrame:
        return self.best_trial.result.metrics_dataframe

    @property
    def best_result_df(self) -> DataFrame:
        """A row with the last report of best_trial, by its id."""
        return self.results_df.loc[[self.best_trial.trial_id]]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        return {trial.trial_id: trial.last_result for trial in self.trials}

    @property
    def results_df(self) -> DataFrame:
        """One row per trial, by its id."""
        return self._grid.get_dataframe().set_index("trial_id")

    @property
    def trial_dataframes(self) -> dict[str, DataFrame]:
        return {trial.trial_id: trial.result.metrics_dataframe for trial in self.trials}

    @property
    def experiment_path(self) -> str:
        return self._grid.experiment_path
