"""The MLflow runs that a training makes itself, once it is done: ended, put below the trial's run, shown in it.

Imports mlflow at the top: load this module only where a training has done so, see `mlflow_in_trial`.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import mlflow
import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException, RestException

from regrow.infra.machine import outage
from regrow.infra.mlflow import parent_run, private
from regrow.infra.mlflow.in_trial import ATTEMPT_TAG, PARENT_TAG, RANK_TAG, TRIAL_TAG, Tracked
from regrow.infra.mlflow.updates import EXPERIMENT_TAG, legal_name
from regrow.tasks.names import task_name

_LOG = logging.getLogger("regrow.trial")
FLUSH_SECONDS = 20.0
"""How long the end of an attempt waits for what MLflow's threads still have to send."""
_POINTS, _PARAMS = 1000, 100
"""In one request, MLflow's own limits."""
_SERVER_ERROR = 500
_CARRIERS = ("requests", "urllib3")

_T = TypeVar("_T")


def is_outage(error: BaseException) -> bool:
    """Whether MLflow's server could not be reached or had trouble of its own. What a training does wrong with MLflow is none."""
    if isinstance(error, RestException):
        return outage.is_outage(error.get_http_status_code())  # type: ignore[no-untyped-call]  # mlflow's
    if isinstance(error, MlflowException):
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]  # mlflow's
        if status == _SERVER_ERROR:  # also what MLflow gives its own errors that have no other
            return isinstance(error.__cause__, requests.RequestException) or str(error).startswith("API request ")
        return outage.is_outage(status)
    if isinstance(error, requests.RequestException) and _is_mlflows(error):
        return error.response is None or outage.is_outage(error.response.status_code)
    return False


def _is_mlflows(error: BaseException) -> bool:
    """Whether it was MLflow that sent a request which failed, not the training itself."""
    modules = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [module for module in modules if module not in _CARRIERS][-1:] == ["mlflow"]


def end_active(status: str) -> None:
    """Sends what waits, and ends this thread's active runs, which the next attempt in this process would go on with."""
    flushing = threading.Thread(target=_flush, name="regrow-mlflow-flush", daemon=True)
    flushing.start()
    flushing.join(FLUSH_SECONDS)
    if flushing.is_alive():
        _LOG.warning("MLflow has not sent all that the training logged, after %.0f s", FLUSH_SECONDS)
    failed: Exception | None = None
    while mlflow.active_run() is not None:
        try:
            mlflow.end_run(status)
        except Exception as error:  # noqa: BLE001 - it is off the stack all the same
            failed = error
    if failed is not None:
        raise failed


def _flush() -> None:
    with suppress(Exception):  # told, batch by batch, where it failed
        mlflow.flush_async_logging()


class OwnRuns:
    """The runs that a trial's attempts have made, up to this one, first to last. Each worker of an attempt that lasts has its
    own alone, rank 0 also those of all earlier attempts.
    """

    def __init__(self, tracked: Tracked, tracking_uri: str, trial: int, attempt: int, chosen: str | None, rank: int = 0) -> None:
        """`chosen`: the MLflow experiment that the training chose, if it did. `rank`: who of the attempt's workers asks."""
        self._client, self._tracked, self._attempt = MlflowClient(tracking_uri), tracked, attempt
        places = [tracked.experiment_id, *filter(None, [chosen])]
        found = list(own_runs(self._client, places, tracked.id, trial))
        before = [run for run in found if _attempt(run) < attempt and rank == 0]
        self._runs = [*before, *(run for run in found if _attempt(run) == attempt and _rank(run) == rank)]
        self._overtaken = any(_attempt(run) > attempt for run in found)
        """Whether a later attempt runs: this one had been given up, and nothing of it counts."""

    def end(self, status: str) -> None:
        """Ends those that are open: of threads, of forked children, of an attempt that was killed. Puts all below the trial's
        run, which after a rewind is another one.
        """
        ids = {self._tracked.run_id, *(run.info.run_id for run in self._runs)}
        for run in self._runs:
            if run.info.status == "RUNNING":
                self._client.set_terminated(run.info.run_id, status if _attempt(run) == self._attempt else "KILLED")
            if run.data.tags.get(PARENT_TAG) not in ids:
                self._client.set_tag(run.info.run_id, PARENT_TAG, self._tracked.run_id)

    def show(self, reported: Collection[str]) -> None:
        """Gives the trial's run the parameters that the attempt logged directly below it, and the metrics' last values, as far as
        it has none of the name: MLflow's tables compare trials by them.
        """
        ours = {legal_name(name) for name in reported} | {parent_run.BEST_STEP}
        ours |= {parent_run.best_metric(name) for name in ours}
        params: dict[str, str] = {}
        metrics: dict[str, float] = {}
        for run in self._runs:
            if _attempt(run) == self._attempt and run.data.tags.get(PARENT_TAG) == self._tracked.run_id:
                params |= run.data.params
                metrics |= {name: value for name, value in run.data.metrics.items() if name not in ours}
        if self._overtaken or not (params or metrics):
            return
        there, now = self._client.get_run(self._tracked.run_id).data.params, int(time.time() * 1000)
        for some in _portions([Metric(name, value, now, 0) for name, value in metrics.items()], _POINTS):
            self._client.log_batch(self._tracked.run_id, metrics=some, synchronous=True)
        for few in _portions([Param(*one) for one in params.items() if one[0] not in there], _PARAMS):
            self._client.log_batch(self._tracked.run_id, params=few, synchronous=True)


def own_runs(client: MlflowClient, places: Sequence[str], experiment_id: str, trial: int) -> Iterator[Run]:
    """The runs that a trial's training has made in these MLflow experiments, first to last; `experiment_id` is regrow's."""
    ours = f"tags.`{EXPERIMENT_TAG}` = '{experiment_id}' and tags.`{TRIAL_TAG}` = '{task_name(trial)}'"
    page: str | None = None
    while True:
        found = client.search_runs(list(places), ours, order_by=["attributes.start_time ASC"], page_token=page)
        yield from found
        page = found.token
        if not page:
            return


def _attempt(run: Run) -> int:
    return int(run.data.tags[ATTEMPT_TAG])


def _rank(run: Run) -> int:
    return int(run.data.tags.get(RANK_TAG, 0))


def _portions(values: Sequence[_T], size: int) -> Iterable[Sequence[_T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def monitor(run_id: str, tracking_uri: str, rank: int | None = None) -> object:
    """Starts MLflow's monitor of CPU, memory, disk, network and GPU, into that run; None, and a warning, if it cannot.

    `rank`: which of several workers it is started in, whose metrics are `system/rank_1/...`; None: the only one, `system/...`.
    """
    try:
        found = private.system_monitor(run_id, tracking_uri, None if rank is None else f"rank_{rank}")
        found.start()  # type: ignore[no-untyped-call]
    except ImportError as error:
        _LOG.warning("system metrics are not recorded: %s (`pip install psutil`)", error)
    except Exception as error:  # noqa: BLE001 - the trial goes on without
        _LOG.warning("system metrics are not recorded: %s: %s", type(error).__name__, error)
    else:
        return found
    return None
