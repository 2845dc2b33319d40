"""The MLflow runs that a training made: at its end they are closed, and placed below the trial's.

Imports mlflow at the top: import this module only if a training has (`in_trial.py`).
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

import mlflow
import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException, RestException

from regrow.infra.machine import outage
from regrow.infra.mlflow import parent_run, private
from regrow.infra.mlflow.in_trial import ATTEMPT_TAG, PARENT_TAG, RANK_TAG, TRIAL_TAG, Tracked
from regrow.infra.mlflow.updates import EXPERIMENT_TAG, every_page, legal_name
from regrow.tasks.process import background
from regrow.tasks.trial.names import task_name

_LOG = logging.getLogger("regrow.trial")
FLUSH_SECONDS = 20.0
"""Seconds that the end of an attempt waits for MLflow's threads to send what remains."""
_POINTS, _PARAMS = 1000, 100
"""Most points and parameters in one request, as limited by MLflow."""
_CARRIERS = ("requests", "urllib3")


def is_outage(error: BaseException) -> bool:
    """Return whether MLflow's server was away or failed, rather than used wrongly."""
    if isinstance(error, MlflowException):
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]  # mlflow's
        # also the default status of MLflow's own errors
        if status == 500 and not isinstance(error, RestException):
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
    """Send what is queued, and end this thread's runs: the next attempt would continue them."""
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


def settle(
    tracked: Tracked,
    tracking_uri: str,
    lease: tuple[int, int],
    status: str,
    *,
    chosen: str | None,
    rank: int,
    reported: Callable[[], Collection[str]],
) -> None:
    """End the runs that a trial's training made, and copy values to the trial's run.

    Open runs (of threads, of forked children, of an attempt that was killed) are ended, and all are
    placed below the trial's run, which is a new one after a rewind. If an attempt has several
    workers, each handles its own runs only; rank 0 also handles those of all earlier attempts.

    Args:
        tracked: where the attempt is recorded.
        tracking_uri: MLflow's.
        lease: the trial and the attempt.
        status: how the attempt ended, in MLflow's words.
        chosen: the MLflow experiment that the training chose, None if it did not.
        rank: the rank of this worker.
        reported: returns the names of the metrics that the trial reports.

    """
    client, (trial, attempt) = MlflowClient(tracking_uri), lease
    places = [tracked.experiment_id, *filter(None, [chosen])]
    found = list(own_runs(client, places, tracked.id, trial))
    now = [run for run in found if (_attempt(run), _rank(run)) == (attempt, rank)]
    before = [run for run in found if _attempt(run) < attempt and rank == 0]
    ids = {tracked.run_id, *(run.info.run_id for run in (*before, *now))}
    for run in (*before, *now):
        if run.info.status == "RUNNING":
            client.set_terminated(run.info.run_id, status if _attempt(run) == attempt else "KILLED")
        if run.data.tags.get(PARENT_TAG) not in ids:
            client.set_tag(run.info.run_id, PARENT_TAG, tracked.run_id)
    # If a later attempt runs, this one had been given up, and nothing of it counts.
    if rank == 0 and not any(_attempt(run) > attempt for run in found):
        _show(client, tracked.run_id, now, reported())


def _show(client: MlflowClient, run_id: str, runs: list[Run], reported: Collection[str]) -> None:
    """Copy to the trial's run the parameters, and the metrics' last values, that were logged
    directly below it. MLflow's tables compare trials by them. Names that regrow writes, and
    parameters that the run has, are skipped.
    """
    names = {*reported, parent_run.BEST_STEP}
    ours = {legal_name(one) for name in names for one in (name, parent_run.best_metric(name))}
    values: dict[str, float] = {}
    params: dict[str, str] = {}
    for run in runs:
        if run.data.tags.get(PARENT_TAG) == run_id:
            params |= run.data.params
            values |= {key: value for key, value in run.data.metrics.items() if key not in ours}
    if not (params or values):
        return
    existing, now = client.get_run(run_id).data.params, int(time.time() * 1000)
    metrics = [Metric(name, value, now, 0) for name, value in values.items()]
    for first in range(0, len(metrics), _POINTS):
        client.log_batch(run_id, metrics=metrics[first : first + _POINTS], synchronous=True)
    new = [Param(*one) for one in params.items() if one[0] not in existing]
    for first in range(0, len(new), _PARAMS):
        client.log_batch(run_id, params=new[first : first + _PARAMS], synchronous=True)


def own_runs(
    client: MlflowClient, places: Sequence[str], experiment_id: str, trial: int
) -> Iterator[Run]:
    """Yield the runs that a trial's training has made in these MLflow experiments, oldest first.
    `experiment_id`: regrow's.
    """
    ours = (
        f"tags.`{EXPERIMENT_TAG}` = '{experiment_id}' and tags.`{TRIAL_TAG}` = '{task_name(trial)}'"
    )
    order = ["attributes.start_time ASC"]
    return every_page(client.search_runs, list(places), ours, order_by=order)


def end_left(tracking_uri: str, experiment_id: str) -> None:
    """End the runs that killed attempts have left running. `experiment_id`: regrow's, of which no
    attempt runs any more.
    """
    client = MlflowClient(tracking_uri)
    places = [place.experiment_id for place in client.search_experiments()]
    ours = f"tags.`{EXPERIMENT_TAG}` = '{experiment_id}' and attributes.status = 'RUNNING'"
    for run in list(every_page(client.search_runs, places, ours)):
        if TRIAL_TAG in run.data.tags:
            client.set_terminated(run.info.run_id, "KILLED")


def _attempt(run: Run) -> int:
    return int(run.data.tags[ATTEMPT_TAG])


def _rank(run: Run) -> int:
    return int(run.data.tags.get(RANK_TAG, 0))


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
