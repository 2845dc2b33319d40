"""Ray Tune's session for a function in one of our trials: `tune.report` and others."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from regrow.search.bounds import MOST
from regrow.search.events import Reported, Row
from regrow.search.nested import leaves
from regrow.tasks.trial.metric_values import number_of
from regrow.tasks.trial.trial import Save, Trial

FILES = "checkpoint"
"""Folder of the user's files in our checkpoint."""
BESIDE = "tune.json"
"""File beside it with Tune's own state of a trial."""
ITERATION, TOTAL = "training_iteration", "time_total_s"
_FILLED_IN = {
    "config",
    "date",
    "done",
    "experiment_id",
    "hostname",
    "iterations_since_restore",
    "node_ip",
    "pid",
    "should_checkpoint",
    "time_since_restore",
    "time_this_iter_s",
    "timestamp",
    "timesteps_since_restore",
    "trial_id",
}
"""Entries that Tune adds to a result, or reads from it, and that are not metrics."""
SUMS = {"timesteps_this_iter": "timesteps_total", "episodes_this_iter": "episodes_total"}
"""Entries that Tune sums up, and the names of the sums."""
PROCESS = "pid", "node_ip"
"""Entries of a result about the process that reported it."""
UNREPORTED = "regrow_nothing_reported"
"""Kept with the report of a trial that itself reported nothing: results leave it out."""
ANONYMOUS = "_metric"
"""Name of a number that is reported, or returned, without a name."""


def reported(event: Reported, row: Row, config: Mapping[str, Any], trial_id: str) -> dict[str, Any]:
    """Return a result as Tune's controller hands it to searchers, schedulers and callbacks, nested
    and flat.
    """
    about = {"config": config, "trial_id": trial_id, "done": False}
    result = event.reported(row)
    return {**nested(result), **result, ITERATION: row.step, **about}


class Reporting:
    """Reports a trial's results: adds Tune's entries, checks stop conditions, saves."""

    def __init__(
        self,
        trial: Trial,
        stop: Callable[[str, dict[str, Any]], bool],
        config: dict[str, Any],
        name: str,
    ) -> None:
        self.trial, self._stop, self._config, self.name = trial, stop, config, name
        remembered: dict[str, float] = {}
        if trial.restored is not None:
            remembered = json.loads((trial.restored / BESIDE).read_text())
        self._before = remembered.get(TOTAL, 0.0)
        self._sums: dict[str, Any] = {
            name: remembered[name] for name in SUMS.values() if name in remembered
        }
        self._began = time.monotonic()
        self._since = trial.step
        self._enough = False
        trial.set_stop_function(lambda _number, _metrics: self._enough)

    @property
    def restored(self) -> Path | None:
        """The folder with the user's files to continue from."""
        return None if self.trial.restored is None else self.trial.restored / FILES

    def report(self, result: Mapping[str, Any], save: Save | None = None) -> None:
        """Report one result. `save` writes the user's files into the given empty folder."""
        total = self._before + time.monotonic() - self._began
        step = self.trial.step + 1
        given = {key: value for key, value in result.items() if key not in _FILLED_IN}
        for each, name in SUMS.items():
            if number_of(result.get(each)) is not None:
                self._sums[name] = self._sums.get(name, 0) + result[each]
        full = {**self._sums, **flat(given), ITERATION: step, TOTAL: total}
        done = bool(result.get("done"))
        about = {"config": self._config, "trial_id": self.name, "done": done}
        filled = {
            "iterations_since_restore": step - self._since,
            "time_since_restore": total - self._before,
            "timestamp": int(time.time()),
        }
        self._enough = done or self._stop(self.name, {**filled, **result, **full, **about})
        numbers = {key: value for key, value in full.items() if number_of(value) is not None}
        metric = self.trial.metric
        if metric in full:
            numbers[metric] = full[metric]  # a trial whose metric is no number fails with its value
        exact = _exact(full)
        if step == self._since + 1:  # only the first result tells of the process
            from ray.util import get_node_ip_address

            exact.update(zip(PROCESS, (os.getpid(), get_node_ip_address()), strict=True))
        self.trial.keep_exactly(exact)
        self.trial.report(numbers, checkpoint=save and self._saving(save, total))

    def _saving(self, save: Save, total: float) -> Save:
        def write(folder: Path) -> None:
            (folder / FILES).mkdir()
            save(folder / FILES)
            kept = {**_plain(self._sums), ITERATION: self.trial.step, TOTAL: total}
            (folder / BESIDE).write_text(json.dumps(kept))

        return write


def trial_info(
    name: str, folder: str, experiment: str, bundle: Mapping[str, float] | None
) -> SimpleNamespace:
    """Return what functions and classes get to know of their trial, under the names of both."""
    from ray import tune

    resources = tune.PlacementGroupFactory([dict(bundle or {"CPU": 1.0})])
    return SimpleNamespace(
        name=name,
        id=name,
        resources=resources,
        trial_name=name,
        trial_id=name,
        trial_resources=resources,
        logdir=folder,
        experiment_name=experiment,
        run_id=experiment,
    )


class TrialSession:
    """Replaces Ray's session for a function that is a trial."""

    def __init__(self, reporting: Reporting, info: SimpleNamespace, folder: str) -> None:
        """Begin it. `folder`: what `get_trial_dir` returns."""
        from ray import tune

        self._reporting = reporting
        self.world_rank = None  # Ray recognizes Tune by it, as opposed to a worker of Ray Train
        self.trial_id = self.trial_name = reporting.name
        self.trial_dir, self.experiment_name = folder, info.experiment_name
        self.trial_info, self.trial_resources = info, info.resources
        self.loaded_checkpoint: Any = None
        if reporting.restored is not None:
            self.loaded_checkpoint = tune.Checkpoint.from_directory(str(reporting.restored))
        self._state: dict[str, Any] = {}

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None, **_: Any) -> None:
        if checkpoint is None:
            self._reporting.report(metrics)
            return
        with checkpoint.as_directory() as folder:
            self._reporting.report(
                metrics, lambda place: shutil.copytree(folder, place, dirs_exist_ok=True)
            )

    def finish(self) -> None:
        """Report that the function has returned, if it reported nothing and no metric is named: to
        Tune that is a trial without results, and no failure.
        """
        trial = self._reporting.trial
        if trial.step == 0 and trial.metric == ITERATION:
            trial.keep_exactly({UNREPORTED: True})
            trial.report({ITERATION: 1})

    def get_state(self, key: str) -> Any:
        """Return what Ray's callbacks stored by `set_state`."""
        return self._state.get(key)

    def set_state(self, key: str, value: Any) -> None:
        self._state[key] = value


def _exact(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a flat result is no float, in JSON's types: see `Row.exact`."""
    found = {key: _plain(value) for key, value in metrics.items() if key != ITERATION}
    return {
        key: value
        for key, value in found.items()
        if not isinstance(value, float) and (not isinstance(value, int) or abs(value) <= MOST)
    }


def _plain(value: Any) -> Any:
    """Return a value in JSON's types as Tune writes it: arrays as lists, other objects as text."""
    if isinstance(value, float) and not isinstance(value, bool):
        return value if math.isfinite(value) or math.isnan(value) else str(value)
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # a log has no half of a surrogate pair
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if hasattr(value, "tolist") and getattr(value, "ndim", 0) in (0, 1, 2):
        return _plain(value.tolist())
    return str(value)


def flat(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested results as Tune does: {"a": {"b": 1}} becomes {"a/b": 1}."""
    found = leaves(metrics, "/")
    return {name: value for name, value in found if not isinstance(value, Mapping)}


def nested(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Nest flat names as Tune reports them: {"a/b": 1} becomes {"a": {"b": 1}}."""
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
