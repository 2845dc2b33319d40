"""The MLflow runs that a training made, handled at its end: closed, placed below the trial's run,
and copied to it.

Imports mlflow at the top: import this module only if a training has imported mlflow, see
`in_trial.py`.
"""

from __future__ import annotations

import logging
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
from regrow.tasks.process import background
from regrow.tasks.trial.names import task_name

_LOG = logging.getLogger("regrow.trial")
FLUSH_SECONDS = 20.0
"""Seconds that the end of an attempt waits for MLflow's threads to send what remains."""
_POINTS, _PARAMS = 1000, 100
"""Most points and parameters in one request, as limited by MLflow."""
_SERVER_ERROR = 500
_CARRIERS = ("requests", "urllib3")

_T = TypeVar("_T")


def is_outage(error: BaseException) -> bool:
    """Return whether MLflow's server could not be reached or failed. A training's wrong use of
    MLflow is not an outage.
    """
    if isinstance(error, RestException):
        return outage.is_outage(error.get_http_status_code())  # type: ignore[no-untyped-call]  # mlflow's
    if isinstance(error, MlflowException):
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]  # mlflow's
        if status == _SERVER_ERROR:  # also the default status of MLflow's own errors
            return isinstance(error.__cause__, requests.RequestException) or str(error).startswith(
                "API request "
            )
        return outage.is_outage(status)
    if isinstance(error, requests.RequestException) and _is_mlflows(error):
        return error.response is None or outage.is_outage(error.response.status_code)
    return False


def _is_mlflows(error: BaseException) -> bool:
    """Return whether a failed request was sent by MLflow, not by the training itself."""
    modules = [
        frame.f_globals.get("__name__", "").partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return [module for module in modules if module not in _CARRIERS][-1:] == ["mlflow"]


def end_active(status: str) -> None:
    """Send what is queued, and end this thread's active runs: the next attempt in this process
    would continue them.
    """
    flushing = background.start(_flush, name="mlflow-flush")
    flushing.join(FLUSH_SECONDS)
    if flushing.is_alive():
        _LOG.warning(
            "MLflow has not sent all that the training logged, after %.0f s", FLUSH_SECONDS
        )
    failed: Exception | None = None
    while mlflow.active_run() is not None:
        try:
            mlflow.end_run(status)
        except Exception as error:  # noqa: BLE001 - the run is off the stack in any case
            failed = error
    if failed is not None:
        raise failed


def _flush() -> None:
    with suppress(Exception):  # failures were reported for each batch
        mlflow.flush_async_logging()


class OwnRuns:
    """The runs made by a trial's attempts, up to this attempt, oldest first. If an attempt has
    several workers, each handles its own runs only; rank 0 also handles those of all earlier
    attempts.
    """

    def __init__(
        self,
        tracked: Tracked,
        tracking_uri: str,
        trial: int,
        attempt: int,
        chosen: str | None,
        rank: int = 0,
    ) -> None:
        """Find the runs. `chosen`: the MLflow experiment that the training chose, None if it did
        not. `rank`: the rank of this worker.
        """
        self._client, self._tracked, self._attempt = MlflowClient(tracking_uri), tracked, attempt
        places = [tracked.experiment_id, *filter(None, [chosen])]
        found = list(own_runs(self._client, places, tracked.id, trial))
        before = [run for run in found if _attempt(run) < attempt and rank == 0]
        self._runs = [
            *before,
            *(run for run in found if _attempt(run) == attempt and _rank(run) == rank),
        ]
        self._overtaken = any(_attempt(run) > attempt for run in found)
        """Whether a later attempt runs. Then this attempt had been given up, and nothing of it
        counts.
        """

    def end(self, status: str) -> None:
        """End open runs: of threads, of forked children, of an attempt that was killed. Place all
        below the trial's run, which is a new one after a rewind.
        """
        ids = {self._tracked.run_id, *(run.info.run_id for run in self._runs)}
        for run in self._runs:
            if run.info.status == "RUNNING":
                self._client.set_terminated(
                    run.info.run_id, status if _attempt(run) == self._attempt else "KILLED"
                )
            if run.data.tags.get(PARENT_TAG) not in ids:
                self._client.set_tag(run.info.run_id, PARENT_TAG, self._tracked.run_id)

    def show(self, reported: Collection[str]) -> None:
        """Copy to the trial's run the parameters, and the metrics' last values, that the attempt
        logged directly below it. MLflow's tables compare trials by them. Names that regrow writes,
        and parameters that the run has, are skipped.
        """
        names = {*reported, parent_run.BEST_STEP}
        ours = {legal_name(one) for name in names for one in (name, parent_run.best_metric(name))}
        params: dict[str, str] = {}
        metrics: dict[str, float] = {}
        for run in self._runs:
            if (
                _attempt(run) == self._attempt
                and run.data.tags.get(PARENT_TAG) == self._tracked.run_id
            ):
                params |= run.data.params
                metrics |= {
                    name: value for name, value in run.data.metrics.items() if name not in ours
                }
        if self._overtaken or not (params or metrics):
            return
        there, now = self._client.get_run(self._tracked.run_id).data.params, int(time.time() * 1000)
        for some in _portions(
            [Metric(name, value, now, 0) for name, value in metrics.items()], _POINTS
        ):
            self._client.log_batch(self._tracked.run_id, metrics=some, synchronous=True)
        for few in _portions(
            [Param(*one) for one in params.items() if one[0] not in there], _PARAMS
        ):
            self._client.log_batch(self._tracked.run_id, params=few, synchronous=True)


def own_runs(
    client: MlflowClient, places: Sequence[str], experiment_id: str, trial: int
) -> Iterator[Run]:
    """Yield the runs that a trial's training has made in these MLflow experiments, oldest first.
    `experiment_id`: regrow's.
    """
    ours = (
        f"tags.`{EXPERIMENT_TAG}` = '{experiment_id}' and tags.`{TRIAL_TAG}` = '{task_name(trial)}'"
    )
    page: str | None = None
    while True:
        found = client.search_runs(
            list(places), ours, order_by=["attributes.start_time ASC"], page_token=page
        )
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
    """Start MLflow's monitor of CPU, memory, disk, network and GPU, recording into the run. Returns
    None, after a warning, if it cannot.

    `rank`: the worker's rank, whose metrics are `system/rank_1/...`; None: the only worker,
    `system/...`.
    """
    try:
        found = private.system_monitor(
            run_id, tracking_uri, None if rank is None else f"rank_{rank}"
        )
        found.start()  # type: ignore[no-untyped-call]
    except ImportError as error:
        _LOG.warning("system metrics are not recorded: %s (`pip install psutil`)", error)
    except Exception as error:  # noqa: BLE001 - the trial continues without them
        _LOG.warning("system metrics are not recorded: %s: %s", type(error).__name__, error)
    else:
        return found
    return None
