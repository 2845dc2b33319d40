"""`ResultGrid` and `Result` of Ray Tune, as views of our log."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from regrow.integrations.tune.session import FILES, ITERATION, flat
from regrow.integrations.tune.templates import render
from regrow.records import TrialResult
from regrow.result import COLUMNS
from regrow.result import Result as Log
from regrow.search.planning.planner import seed_for

if TYPE_CHECKING:
    from pandas import DataFrame

    from regrow.integrations.tune.translation import Translation

_WINDOWS = {"last-5-avg": 5, "last-10-avg": 10}
_OVER = ("done", "stopped")
SCOPES = ("last", "all", "avg", *_WINDOWS)


class Result:
    """One trial. Attributes as Ray's: metrics (of the last report), config, error, path,
    metrics_dataframe, checkpoint, best_checkpoints.
    """

    def __init__(self, log: Log, trial: TrialResult, template: Any) -> None:
        self._log, self._trial, self.state = log, trial, trial.state
        self.trial_id = f"{log.name}_{trial.number:05d}"
        self.path = f"{log.state}/{log.name}"
        seed = seed_for(log.spec.seed, trial.number, "trial")
        self.config: dict[str, Any] = (
            trial.config if template is None else render(template, trial.config, seed)
        )

    @cached_property
    def metrics_dataframe(self) -> DataFrame:
        """One row per report, with its metrics only."""
        rows = self._log.history(self._trial.number).reset_index(drop=True)
        rows = rows.drop(columns=["attempt", "time"])
        return rows.rename(columns={f"metrics.{name}": name for name in COLUMNS})

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Metrics of the last report, nested and flat, with the entries that Tune adds."""
        rows = self.metrics_dataframe
        last = {} if rows.empty else {str(key): value for key, value in rows.iloc[-1].items()}
        if ITERATION in last:
            last[ITERATION] = int(last[ITERATION])
        about = {"config": self.config, "trial_id": self.trial_id, "done": self.state in _OVER}
        return {**_nested(last), **last, **about}

    @property
    def error(self) -> Exception | None:
        """Why the trial failed, with the user's traceback as text; None if it did not."""
        if self._trial.state != "failed":
            return None
        last = self._trial.attempts[-1]
        return RuntimeError(last.trace or last.reason)

    @cached_property
    def checkpoint(self) -> Any:
        """The newest retained checkpoint, restored and verified; None if there is none."""
        return self._restored(max(self._trial.checkpoints, default=None))

    @cached_property
    def best_checkpoints(self) -> list[tuple[Any, dict[str, Any]]]:
        """The retained checkpoints, oldest first, each with the metrics of its report."""
        return [
            (self._restored(step), dict(self.metrics_dataframe.iloc[step - 1]))
            for step in sorted(self._trial.checkpoints)
        ]

    def get_best_checkpoint(self, metric: str, mode: str) -> Any:
        """Return the retained checkpoint at whose report `metric` was best."""
        values = {
            step: self.metrics_dataframe[metric].iloc[step - 1] for step in self._trial.checkpoints
        }
        values = {step: value for step, value in values.items() if math.isfinite(value)}
        best = max if mode == "max" else min
        return self._restored(best(values, key=values.__getitem__)) if values else None

    def _restored(self, step: int | None) -> Any:
        if step is None:
            return None
        from ray.tune import Checkpoint

        folder = tempfile.mkdtemp(prefix=f"regrow-{self.trial_id}-{step}-")
        place = self._log.load_checkpoint(self._trial.number, step, f"{folder}/files")
        return Checkpoint.from_directory(str(place / FILES))

    def value(self, metric: str, mode: str, scope: str) -> float | None:
        """Return a metric's value for this scope; None if never finite. Raises ValueError."""
        if scope not in SCOPES:
            raise ValueError(f"scope={scope!r} is none of {', '.join(SCOPES)}")
        rows = self.metrics_dataframe
        if metric not in rows or rows.empty:
            return None
        values: Sequence[float] = [float(v) for v in rows[metric]]
        if scope == "last":
            values = values[-1:]
        values = [v for v in values if math.isfinite(v)][-_WINDOWS.get(scope, len(values)) :]
        if not values:
            return None
        if scope == "all":
            return max(values) if mode == "max" else min(values)
        return sum(values) / len(values)

    def __repr__(self) -> str:
        shown = {k: v for k, v in self.metrics.items() if isinstance(v, float | int)}
        return f"Result(metrics={shown}, path={self.path!r}, config={self.config})"


class ResultGrid:
    """All trials of an experiment, by number."""

    def __init__(self, log: Log, found: Translation | None = None) -> None:
        self._log = log
        named = isinstance(log.spec.metric, str) and log.spec.metric != ITERATION
        self._metric: Any = log.spec.metric if named else None
        self._mode: Any = log.spec.mode if named else None
        template = None
        if found is not None:
            self._metric, self._mode = found.metric, found.mode
            template = found.trainable.template
        self._results = [Result(log, trial, template) for trial in log.trials]

    @property
    def experiment_path(self) -> str:
        """State root and name: the argument of `Tuner.restore`."""
        return f"{self._log.state}/{self._log.name}"

    @property
    def errors(self) -> list[Exception]:
        return [result.error for result in self._results if result.error is not None]

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """Number of trials that ended without failing."""
        return sum(result.state in _OVER for result in self._results)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the best trial, by its last report; `scope`: by its best report (all), or a mean.
        Raises RuntimeError if there is none.
        """
        metric, mode = self._chosen(metric, mode)
        values = [result.value(metric, mode, scope) for result in self._results]
        known = {number: value for number, value in enumerate(values) if value is not None}
        if not known:
            raise RuntimeError(f"no trial of {self._log.name} reported a finite {metric!r}")
        best = max if mode == "max" else min
        return self._results[best(known, key=known.__getitem__)]

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> DataFrame:
        """Return one row per trial: its last report, or the one at which `filter_metric` is best;
        config/NAME for its configuration.
        """
        import pandas as pd

        return pd.DataFrame(
            [self._row(result, filter_metric, filter_mode) for result in self._results]
        )

    def _row(self, result: Result, metric: str | None, mode: str | None) -> dict[str, Any]:
        rows, row = result.metrics_dataframe, dict[str, Any]()
        if not rows.empty:
            place = -1
            if metric is not None:
                place = int(rows[metric].idxmax() if mode == "max" else rows[metric].idxmin())
            row = {str(k): v for k, v in rows.iloc[place].items()}
        settings = {f"config/{key}": value for key, value in flat(result.config).items()}
        return {**row, "trial_id": result.trial_id, "logdir": result.path, **settings}

    def _chosen(self, metric: str | None, mode: str | None) -> tuple[str, str]:
        metric, mode = metric or self._metric, mode or self._mode
        if not isinstance(metric, str):
            raise ValueError("no metric is given: write get_best_result(metric=..., mode=...)")  # noqa: TRY004 - as Ray raises it
        if not isinstance(mode, str):
            raise ValueError("no mode is given: write get_best_result(mode='min' or 'max')")  # noqa: TRY004 - as Ray raises it
        return metric, mode

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, number: int) -> Result:
        return self._results[number]

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    def __repr__(self) -> str:
        return f"ResultGrid<[{', '.join(map(repr, self._results))}]>"


def _nested(metrics: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in metrics.items():
        *groups, last = key.split("/")
        place = found
        for group in groups:
            inner = place.setdefault(group, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place[last] = value
    return found
