"""`ExperimentAnalysis`, which `tune.run` returns, as views of the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regrow.integrations.tune.results import Result, ResultGrid

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
    """See Ray's. Metric and mode may be omitted if the script has set them."""

    def __init__(self, grid: ResultGrid, metric: str | None, mode: str | None) -> None:
        self._grid, self.default_metric, self.default_mode = grid, metric, mode
        self.trials = [AnalyzedTrial(result) for result in grid]

    def get_best_trial(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last", **_: Any
    ) -> AnalyzedTrial:
        """See ResultGrid.get_best_result."""
        metric, mode = metric or self.default_metric, mode or self.default_mode
        best = self._grid.get_best_result(metric, mode, scope)
        return next(trial for trial in self.trials if trial.result is best)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any]:
        return self.get_best_trial(metric, mode, scope).config

    def get_best_checkpoint(
        self, trial: AnalyzedTrial, metric: str | None = None, mode: str | None = None
    ) -> Any:
        """Return the best of a trial's retained checkpoints."""
        metric, mode = metric or self.default_metric, mode or self.default_mode
        if metric is None or mode is None:
            raise ValueError("no metric or mode is given")
        return trial.result.get_best_checkpoint(metric, mode)

    def get_last_checkpoint(self, trial: AnalyzedTrial | None = None, **_: Any) -> Any:
        """Return the last checkpoint of a trial, None: of the best one."""
        return (trial or self.best_trial).checkpoint

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> DataFrame:
        return self._grid.get_dataframe(metric, mode)

    def get_all_configs(self, **_: Any) -> dict[str, dict[str, Any]]:
        return {trial.trial_id: trial.config for trial in self.trials}

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
