"""`ResultGrid` and `Result` of Ray Tune, as views of our log."""

from __future__ import annotations

import builtins
import math
import os
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.integrations.tune.private import TRIAL_INDEX, default_storage
from regrow.integrations.tune.reports import EAGER, TuneReports, written_folder
from regrow.integrations.tune.session import FILES, ITERATION, flat, nested
from regrow.integrations.tune.templates import Suggested, render
from regrow.records import TrialResult
from regrow.result import Result as Log
from regrow.result import open as open_log
from regrow.search.planning.planner import seed_for
from regrow.search.samplers import suggests
from regrow.search.spec import as_name
from regrow.tasks.attempt.trainable import unpickled
from regrow.tasks.errors import UserError
from regrow.tasks.trial.metric_values import number_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from regrow.integrations.tune.translation import Translation

_WINDOWS = {"last-5-avg": 5, "last-10-avg": 10}
_OVER = ("done", "stopped")
NO_FILESYSTEM = "storage_filesystem is not used here; give a path: a folder, or s3://BUCKET/PREFIX"
SCOPES = ("last", "all", "avg", *_WINDOWS)


class Result:
    """One trial. Attributes as Ray's: metrics (of the last report), config, error, path,
    metrics_dataframe, checkpoint, best_checkpoints.
    """

    def __init__(self, log: Log, trial: TrialResult, template: Any, reports: TuneReports) -> None:
        self._log, self._trial, self.state = log, trial, trial.state
        self._reports = reports
        self.trial_id = f"{log.name}_{trial.number:05d}"
        seed = seed_for(log.spec.seed, trial.number, "trial")
        self.config: dict[str, Any] = trial.config
        if template is not None:
            self.config = render(template, trial.config, seed)
            if suggests(log.spec.search) and not isinstance(template, Suggested):
                self.config |= trial.config
        if log.spec.repeats > 1:
            self.config = {**self.config, TRIAL_INDEX: trial.number % log.spec.repeats}

    @cached_property
    def path(self) -> str:
        """The trial's own folder, a path or a URL: params.json, result.json and progress.csv, as
        Tune writes them.
        """
        return written_folder(self._log, self.trial_id, self.config, self._rows)

    @property
    def filesystem(self) -> Any:
        """PyArrow's file system in which `path` is."""
        return filesystem(self._log.state)

    @classmethod
    def from_path(cls, path: str, storage_filesystem: Any = None) -> Result:
        """Read a trial's result from its `path`. Raises UserError for any other path."""
        whole, _, name = str(path).rstrip("/").rpartition("/")
        if storage_filesystem is not None:
            raise UserError(NO_FILESYSTEM)
        for result in ResultGrid.from_path(whole):
            if result.trial_id == name:
                return result
        raise UserError(f"{path}: there is no trial of this name")

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """Each report, flat, with Tune's entries."""
        rows = list(self._reports.of(self._trial, self.trial_id))
        if rows:
            rows[-1]["done"] = self.state in _OVER
        return rows

    @cached_property
    def metrics_dataframe(self) -> DataFrame:
        """One row per report, with Tune's entries, and `config/NAME` for its configuration."""
        import pandas as pd

        settings = {f"config/{key}": value for key, value in flat(self.config).items()}
        return pd.DataFrame([{**row, **settings} for row in self._rows])

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Result of the last report, nested and flat, with the entries that Tune adds."""
        none = {"trial_id": self.trial_id, "done": self.state in _OVER}
        last = self._rows[-1] if self._rows else none
        return {**nested(last), **last, "config": self.config}

    @property
    def error(self) -> Exception | None:
        """Why the trial failed, with the user's traceback as text, and of the class that was raised
        if that is one of Python's plain ones; None if it did not.
        """
        if self._trial.state != "failed":
            return None
        last = self._trial.attempts[-1]
        return _raised(last.reason)(last.trace or last.reason)

    @cached_property
    def checkpoint(self) -> Any:
        """The newest retained checkpoint, restored and verified; None if there is none."""
        return self._restored(max(self._trial.checkpoints, default=None))

    @cached_property
    def best_checkpoints(self) -> list[tuple[Any, dict[str, Any]]]:
        """The retained checkpoints, each with the metrics of its report: oldest first, or, if they
        are kept by their score, those only, the best last.
        """
        steps, kept = sorted(self._trial.checkpoints), self._log.spec.checkpoint
        if kept.keep_last == 1 and kept.keep_best:
            goal = self._log.spec.objective
            sign = 1 if goal.mode == "max" else -1
            scores = {step: number_of(self._rows[step - 1].get(goal.name)) for step in steps}
            steps.sort(key=lambda step: sign * (scores[step] or 0.0))
            steps = steps[-kept.keep_best :]
        return [(self._restored(step), self._rows[step - 1]) for step in steps]

    def get_best_checkpoint(self, metric: str, mode: str) -> Any:
        """Return the retained checkpoint at whose report `metric` was best."""
        values: dict[int, float] = {}
        for step in self._trial.checkpoints:
            value = number_of(self._rows[step - 1].get(metric))
            if value is not None and math.isfinite(value):
                values[step] = value
        best = _best(mode)
        return self._restored(best(values, key=values.__getitem__)) if values else None

    def _restored(self, step: int | None) -> Any:
        if step is None:
            return None
        from ray.tune import Checkpoint

        folder = tempfile.mkdtemp(prefix=f"regrow-{self.trial_id}-{step}-")
        place = self._log.load_checkpoint(self._trial.number, step, f"{folder}/files")
        return Checkpoint.from_directory(str(place / FILES))

    def value(self, metric: str, mode: str, scope: str, *, finite: bool = True) -> float | None:
        """Return a metric's value for this scope; None if never finite, with `finite`. Raises
        ValueError.
        """
        if scope not in SCOPES:
            raise ValueError(f"scope={scope!r} is none of {', '.join(SCOPES)}")
        found = [number_of(row[metric]) for row in self._rows if metric in row]
        values = [value for value in found if value is not None]
        if scope == "last":
            values = values[-1:]
        values = [v for v in values if not finite or math.isfinite(v)]
        values = values[-_WINDOWS.get(scope, len(values)) :]
        if not values:
            return None
        if scope == "all":
            best: float = _best(mode)(values)
            return best
        return sum(values) / len(values)

    def row(self, metric: str | None, mode: str | None) -> dict[str, Any]:
        """Return the report at which `metric` is best; without metric or mode the last one, without
        any its id.
        """
        rows, none = self._rows, {"trial_id": self.trial_id}
        if metric is None or mode is None:
            return rows[-1] if rows else none
        rows = [row for row in rows if number_of(row.get(metric)) is not None]
        best: dict[str, Any] = _best(mode)(rows, key=lambda row: float(row[metric]), default=none)
        return best

    def __repr__(self) -> str:
        shown = {k: v for k, v in self.metrics.items() if isinstance(v, float | int)}
        return f"Result(metrics={shown}, path={self.path!r}, config={self.config})"


class ResultGrid:
    """All trials of an experiment, by number."""

    def __init__(self, log: Log, found: Translation | None = None, *, template: Any = None) -> None:
        """Read the results of a log. `template`: see Trainable, for one without a translation."""
        self._log = log
        named = isinstance(log.spec.metric, str) and log.spec.metric != ITERATION
        self._metric: Any = log.spec.metric if named else None
        self._mode: Any = log.spec.mode if named else None
        if found is not None:
            self._metric, self._mode = found.metric, found.mode
            template = found.trainable.template
        reports = TuneReports(log)
        self._results = [Result(log, trial, template, reports) for trial in log.trials]

    @classmethod
    def from_path(cls, path: str) -> ResultGrid:
        """Read the results of an experiment, see `opened`."""
        log = opened(path)
        return cls(log, template=stored_template(log))

    def write_folders(self) -> None:
        """Write the folders of trials; of many, each when its `path` is asked for."""
        if len(self) <= EAGER:
            for result in self:
                _ = result.path

    @property
    def experiment_path(self) -> str:
        """State root and name: the argument of `Tuner.restore`."""
        return f"{self._log.state}/{self._log.name}"

    @property
    def filesystem(self) -> Any:
        """PyArrow's file system in which `experiment_path` is."""
        return filesystem(self._log.state)

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
        `filter_nan_and_inf`: without values that are not finite. The only trial needs no metric.
        Raises RuntimeError if there is none.
        """
        if len(self) == 1:
            return self._results[0]
        metric, mode = metric or self._metric, mode or self._mode
        if not isinstance(metric, str):
            raise ValueError("no metric is given: write get_best_result(metric=..., mode=...)")  # noqa: TRY004 - as Ray raises it
        if not isinstance(mode, str):
            raise ValueError("no mode is given: write get_best_result(mode='min' or 'max')")  # noqa: TRY004 - as Ray raises it
        best = _best(mode)
        finite = filter_nan_and_inf
        values = [result.value(metric, mode, scope, finite=finite) for result in self._results]
        known = {number: value for number, value in enumerate(values) if value is not None}
        if not known:
            raise RuntimeError(f"no trial of {self._log.name} reported a finite {metric!r}")
        return self._results[best(known, key=known.__getitem__)]

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> DataFrame:
        """Return one row per trial: its last report, or the one at which `filter_metric` is best;
        config/NAME for its configuration.
        """
        import pandas as pd

        rows = []
        for result in self._results:
            settings = {f"config/{key}": value for key, value in flat(result.config).items()}
            report = result.row(filter_metric, filter_mode)
            rows.append({**report, "logdir": result.path, **settings})
        return pd.DataFrame(rows)

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, number: int) -> Result:
        return self._results[number]

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    def __repr__(self) -> str:
        return f"ResultGrid<[{', '.join(map(repr, self._results))}]>"


def _best(mode: str) -> Any:
    """Return the function `max` or `min`. Raises ValueError, as Ray does, for another word."""
    if mode not in ("max", "min"):
        raise ValueError(f"mode={mode!r} is neither 'max' nor 'min'")
    return max if mode == "max" else min


def _raised(reason: str) -> type[Exception]:
    """Return the class of a trial's error: a RuntimeError, and of the class with which the reason
    begins, if that is one of Python's that holds nothing but its arguments.
    """
    kind: Any = getattr(builtins, reason.partition(":")[0], None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return RuntimeError
    if kind.__basicsize__ != Exception.__basicsize__ or issubclass(RuntimeError, kind):
        return RuntimeError
    bases = (kind,) if issubclass(kind, RuntimeError) else (RuntimeError, kind)
    return type("TrialError", bases, {"__str__": lambda self: str(self.args[0])})


def filesystem(state: str) -> Any:
    """Return PyArrow's file system of a state root."""
    from pyarrow import fs

    if "://" not in state:
        return fs.LocalFileSystem()
    found, _ = fs.FileSystem.from_uri(state)
    return found


def stored_template(log: Log) -> Any:
    """Return the template of the configurations of an experiment that another process began: it is
    pickled with the trainable in its state, and names what no log can hold. None without one.
    """
    store = Places.at(log.state).known(log.name)
    opened = replay(store, log.name).opened
    if opened is None or opened.code is None:
        return None
    return getattr(unpickled(store, f"code/{opened.code}", opened.code), "template", None)


def opened(path: str, *, state: str | None = None, name: str | None = None) -> Log:
    """Return the experiment at a path of Tune's: state root, slash, name; `state` and `name` go
    before both. Below Ray's default folder, experiments of scripts that named none are found, too.
    Raises UserError if there is none.
    """
    root, _, last = str(path).rstrip("/").rpartition("/")
    own, name = state or root or ".", name or as_name(last, "tune")
    try:
        return open_log(name, own)
    except UserError:
        if state is None and Path(os.path.expanduser(own)) == default_storage():
            return open_log(name)
        raise
