"""MLflow's tracking store within a trial: what user code logs must neither collide with what is recorded, nor end the trial.

Parameters and metrics of the user's own under a name that the trial has already become `logged.NAME`; how a run ends is the
recorder's to say; and when MLflow is away, that is told once, and calls are dropped for a while. Imported inside of a
function, once mlflow is there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import requests
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service import utils

from regrow.tasks import mlflow_calls
from regrow.tasks.addresses import shown

if TYPE_CHECKING:
    from regrow.tasks.mlflow_calls import Calls

_LOG = logging.getLogger("regrow.trial")
QUIET_SECONDS = 30.0
"""For how long calls are dropped after one that did not reach MLflow: each costs its retries."""
PREFIX = "logged."
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500


def guard(tracking_uri: str, calls: Calls, params: Mapping[str, str]) -> None:
    """Looks after the calls of an attempt; `params` are those that its run has."""
    get_store: Any = utils._get_store  # noqa: SLF001 - the one that MLflow's clients share; there is no public way to it
    store = get_store(tracking_uri)
    found = getattr(store, "_regrow_guard", None)
    if found is None:
        found = store._regrow_guard = _Guard(store)  # noqa: SLF001 - ours
    found.begin(calls, params)


class _Guard:
    """In front of one store, for as long as the process lives; for other runs than the trial's it does nothing."""

    def __init__(self, store: Any) -> None:
        self._real = {
            name: getattr(store, name) for name in ("log_batch", "log_param", "log_metric", "set_tag", "update_run_info")
        }
        self._get_run = store.get_run
        self._lock = threading.Lock()
        self._calls: Calls | None = None
        self._params: dict[str, str] = {}
        self._told: set[str] = set()
        self._quiet_until = 0.0
        store.log_batch, store.log_param, store.log_metric = self.log_batch, self.log_param, self.log_metric
        store.set_tag, store.update_run_info = self.set_tag, self.update_run_info

    def begin(self, calls: Calls, params: Mapping[str, str]) -> None:
        """From now on it is this attempt's run that is looked after."""
        with self._lock:
            self._calls, self._params, self._told, self._quiet_until = calls, dict(params), set(), 0.0

    def log_batch(self, run_id: str, metrics: Iterable[Metric], params: Iterable[Param], tags: Any) -> Any:
        """See MLflow's store."""
        if not self._is_ours(run_id):
            return self._real["log_batch"](run_id, metrics, params, tags)
        metrics = [self._metric(metric) for metric in metrics]
        params = [kept for param in params if (kept := self._param(param)) is not None]
        return self._reach(lambda: self._real["log_batch"](run_id, metrics, params, tags))

    def log_param(self, run_id: str, param: Param) -> Any:
        """See MLflow's store."""
        if not self._is_ours(run_id):
            return self._real["log_param"](run_id, param)
        kept = self._param(param)
        return None if kept is None else self._reach(lambda: self._real["log_param"](run_id, kept))

    def log_metric(self, run_id: str, metric: Metric) -> Any:
        """See MLflow's store."""
        if not self._is_ours(run_id):
            return self._real["log_metric"](run_id, metric)
        return self._reach(lambda: self._real["log_metric"](run_id, self._metric(metric)))

    def set_tag(self, run_id: str, tag: Any) -> Any:
        """See MLflow's store."""
        if not self._is_ours(run_id):
            return self._real["set_tag"](run_id, tag)
        return self._reach(lambda: self._real["set_tag"](run_id, tag))

    def update_run_info(self, run_id: str, *rest: Any, **options: Any) -> Any:
        """See MLflow's store: changes nothing of the trial's run."""
        if not self._is_ours(run_id):
            return self._real["update_run_info"](run_id, *rest, **options)
        assert self._calls is not None
        run = self._reach(lambda: self._get_run(run_id)) or self._calls.active
        return run.info

    def _is_ours(self, run_id: str) -> bool:
        calls = mlflow_calls.current()
        return calls is not None and calls is self._calls and calls.tracked is not None and calls.tracked.run_id == run_id

    def _param(self, param: Param) -> Param | None:
        with self._lock:
            for key in (param.key, PREFIX + param.key):
                if self._params.setdefault(key, str(param.value)) == str(param.value):
                    return Param(key, param.value)
        self._tell(param.key, f"the parameter {param.key!r} was logged with a third value, which MLflow cannot hold")
        return None

    def _metric(self, metric: Metric) -> Metric:
        if self._calls is None or metric.key not in self._calls.reported():
            return metric
        renamed = dict(metric) | {"key": PREFIX + metric.key}
        return Metric(**renamed)

    def _reach(self, call: Callable[[], Any]) -> Any:
        if time.monotonic() < self._quiet_until:
            return None
        try:
            return call()
        except MlflowException as error:
            status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]  # mlflow's
            if status < _SERVER_ERROR and status != _TOO_MANY_REQUESTS:
                raise
            self._away(error)
        except (OSError, requests.RequestException) as error:
            self._away(error)

    def _away(self, error: Exception) -> None:
        self._quiet_until = time.monotonic() + QUIET_SECONDS
        first = shown(str(error)).strip().partition("\n")[0]
        self._tell("", f"MLflow is away, and what the trainable logs to it meanwhile is lost: {first}")

    def _tell(self, about: str, line: str) -> None:
        if about not in self._told:
            self._told.add(about)
            _LOG.warning("%s", line)
