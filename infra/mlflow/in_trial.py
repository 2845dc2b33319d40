"""A training's own MLflow calls: which of MLflow's variables are set during an attempt. Nothing of MLflow is replaced.

What a training logs goes to MLflow runs of its own below the trial's run, which is written by the recorder alone. They cannot
share one: a later attempt logs a parameter with another value, which MLflow refuses; a metric that is logged and reported would
have each point twice; and MLFLOW_RUN_ID is used up by the first `start_run`, and an error after `set_experiment` or at another
server.

Nothing here imports mlflow, which takes 1.4 s of CPU and 100 MB: a worker whose training does not use it has no need of it.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import msgspec

from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.private import ARTIFACT_ROOT, choose_experiment
from regrow.infra.mlflow.updates import EXPERIMENT_TAG
from regrow.tasks import variables
from regrow.tasks.addresses import redacted
from regrow.tasks.errors import UserError
from regrow.tasks.forking import renewed
from regrow.tasks.messages import RecordsAway
from regrow.tasks.names import task_name

_LOG = logging.getLogger("regrow.trial")
PARENT_TAG, TRIAL_TAG, ATTEMPT_TAG, RANK_TAG = "mlflow.parentRunId", "regrow.logged_in", "regrow.attempt", "regrow.rank"
"""Of a run of the training's own: the trial's run, the trial's name, the attempt, and the worker's rank from 1 on."""
PATIENCE_SECONDS = 60.0
"""How long an attempt waits for the recorder to have made the trial's run, as long as nothing is known to be in the way."""
TROUBLE_SECONDS = 3.0
"""How long it waits for one that says that MLflow is away."""
CHECK_SECONDS = 5.0
"""How long MLflow may take to answer the worker's first request."""
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A server that is away is waited for about a minute; MLflow's own 7 retries, of up to 120 s each, take a quarter of an hour.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
_OF_A_SERVER = {"MLFLOW_ENABLE_ASYNC_LOGGING": "true"}
"""MLflow's threads send metrics, parameters and tags: a server that is away neither holds the training up nor ends it."""
_OF_A_FILE = {"MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool"}
"""No connection to sqlite outlives a call: a forked child that went on with its parent's could damage the file."""
_ENDING = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""While an attempt ends, its slot is wanted by the next one."""
_CHOSEN = "MLFLOW_EXPERIMENT_ID"
"""Also set by `mlflow.set_experiment`, which holds in the whole process: an MLflow experiment of the training's own choice."""
_SET = (
    "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_CONTEXT", "MLFLOW_RUN_ID", ARTIFACT_ROOT,
    *_SETTINGS, *_OF_A_SERVER, *_OF_A_FILE,
)


class Tracked(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt is recorded.

    `run_id`: the trial's MLflow run. `experiment_id`, `experiment_name`: the MLflow experiment that it is in.
    `id`: the regrow experiment's.
    """

    run_id: str
    experiment_id: str
    experiment_name: str
    id: str


class Source(Protocol):
    """Who knows where an attempt is recorded: the recorder, seen from a worker."""

    tracking_uri: str
    """May hold a password: for MLflow's client alone."""
    artifact_root: str | None
    """Where MLflow's artifacts are if they are kept in files; None: as MLflow, or its server, has it."""

    def run_of(self, trial: int, attempt: int) -> tuple[Tracked | None, str | None]:
        """Where an attempt is recorded, None if that is not there yet, after waiting for a second or so; and what is in the way,
        if that is known. Raises nothing.
        """
        ...


class RayRecords:
    """The Records port, and its source: the recorder, over an actor handle. Goes to the workers."""

    def __init__(self, actor: Any, tracking_uri: str, artifact_root: str | None) -> None:
        self._actor = actor
        self.tracking_uri, self.artifact_root = tracking_uri, artifact_root

    def own_calls(
        self, trial: int, attempt: int, *, scratch: Path, reported: Callable[[], Collection[str]], system_metrics: bool,
        rank: int | None = None,
    ) -> AbstractContextManager[object]:
        """See Records."""
        return own_calls(self, (trial, attempt), scratch, reported=reported, system_metrics=system_metrics, rank=rank)

    def run_of(self, trial: int, attempt: int) -> tuple[Tracked | None, str | None]:
        """See Source."""
        import ray

        try:
            found: tuple[Tracked | None, str | None] = ray.get(self._actor.run_of.remote(trial, attempt), timeout=10.0)
        except ray.exceptions.GetTimeoutError:  # busy: many ask at once
            return None, None
        except ray.exceptions.RayError as error:
            return None, f"the recorder does not answer: {error}"
        return found


@contextmanager
def own_calls(
    source: Source | None, lease: tuple[int, int], scratch: Path, *, reported: Callable[[], Collection[str]],
    system_metrics: bool = False, rank: int | None = None,
) -> Iterator[None]:
    """Within the block, what a training logs with MLflow goes below the run of the attempt `lease`.

    With `source` None it goes to a place in `scratch`.

    `reported`: the names of the metrics that the trial reports. `system_metrics`: imports mlflow, and has its monitor record the
    machine's load in the trial's run. `rank`: which of the attempt's workers this is, None for the only one; each logs to runs of
    its own, and rank 0 alone gives the trial's run its share. Raises RecordsAway in place of an error of MLflow's that says that
    its server is away.
    """
    calls, process = _Calls(source, lease, scratch, reported, rank), os.getpid()
    before = {name: os.environ.get(name) for name in _SET}
    trigger = _BeforeImport(calls.begin)
    status = "FINISHED"
    try:
        if "mlflow" in sys.modules:
            calls.begin()
        else:
            sys.meta_path.insert(0, trigger)
        if system_metrics:
            calls.monitor()
        yield
    except Exception as error:
        status = "FAILED"
        if source is not None and calls.used and _runs().is_outage(error):
            raise RecordsAway(f"MLflow was away when the training called it: {_first_line(error)}") from error
        raise
    finally:
        if os.getpid() == process:  # a child that the training has forked may pass here on its way out
            calls.end(status)
            if trigger in sys.meta_path:
                sys.meta_path.remove(trigger)
            variables.put_back(before)


@contextmanager
def nowhere() -> Iterator[None]:
    """Within the block MLflow's calls lead to a place that is thrown away: a module that is only looked at may make some."""
    # What MLflow says at its first use is not about anything that stays.
    quiet = {"MLFLOW_LOGGING_LEVEL": os.environ.get("MLFLOW_LOGGING_LEVEL", "WARNING")}
    temporary = tempfile.TemporaryDirectory(prefix="regrow-mlflow-", ignore_cleanup_errors=True)
    with temporary as scratch, variables.within(quiet), own_calls(None, (0, 0), Path(scratch), reported=tuple):
        yield


class _Calls:
    """The calls of one attempt, from the moment when MLflow may be used."""

    def __init__(
        self, source: Source | None, lease: tuple[int, int], scratch: Path, reported: Callable[[], Collection[str]],
        rank: int | None = None,
    ) -> None:
        self._source, self._lease, self._scratch, self._reported = source, lease, scratch, reported
        self._rank = rank
        self._tracked: Tracked | None = None
        self._begun = self._forked = False
        self._monitor: Any = None
        self._chosen: str | None = None
        self._active: str | None = None
        """The MLflow experiment that had been chosen before, by its variable and by `set_experiment`; None for none."""
        renewed(self)

    def renew(self) -> None:
        """See Renewed: neither MLflow's threads nor the connection to the recorder are there in a forked child."""
        self._forked = True
        if self._begun:
            os.environ |= dict.fromkeys(_OF_A_SERVER, "false")

    @property
    def used(self) -> bool:
        """Whether mlflow was imported; anything may have been logged by then."""
        return self._begun and "mlflow" in sys.modules

    def begin(self) -> None:
        """Sets the variables, once the trial's run is there; if it cannot be had, what is logged goes to `scratch`."""
        self._begun = True
        self._tracked, why = self._find()
        if self._tracked is None and self._source is not None:
            _LOG.warning("trial %d: what the training itself logs to MLflow is lost in this attempt: %s", self._lease[0], why)
        os.environ.pop("MLFLOW_RUN_ID", None)
        if self._tracked is None or "mlflow" not in sys.modules:
            # Before mlflow is imported the training cannot have chosen: it was whoever started the worker (`mlflow run`, say).
            self._chosen = os.environ.pop(_CHOSEN, None)
        if self._tracked is None:
            self._throw_away()
        else:
            os.environ |= self._variables(self._tracked)
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)

    def _find(self) -> tuple[Tracked | None, str]:
        if self._source is None:
            return None, ""
        if self._forked:
            return None, "this is a process that the training forked before it imported mlflow itself; import it before"
        began = time.monotonic()
        while True:
            tracked, trouble = self._source.run_of(*self._lease)
            if tracked is not None:
                break
            if time.monotonic() - began > (PATIENCE_SECONDS if trouble is None else TROUBLE_SECONDS):
                return None, trouble or f"it did not have the trial's run within {PATIENCE_SECONDS:.0f} s"
        scheme, _, place = self._source.tracking_uri.partition(":///")
        if scheme == "sqlite" and "?" not in place and not Path(place).is_file():
            # The recorder has made it by now, elsewhere; here it would be made for nobody.
            return None, (
                "MLflow's records are a file on the driver's machine, which is not this one; with a tracking server in"
                " MLFLOW_TRACKING_URI they can be had from all"
            )
        try:
            check(self._source.tracking_uri, CHECK_SECONDS)
        except UserError as error:  # the recorder reaches it, this machine does not
            return None, str(error)
        return tracked, ""

    def _variables(self, tracked: Tracked) -> dict[str, str]:
        assert self._source is not None
        (trial, attempt), uri = self._lease, self._source.tracking_uri
        who = f", rank {self._rank}" if self._rank else ""
        tags = {
            "mlflow.runName": f"attempt {attempt} of {task_name(trial)}{who}", PARENT_TAG: tracked.run_id,
            EXPERIMENT_TAG: tracked.id, TRIAL_TAG: task_name(trial), ATTEMPT_TAG: str(attempt),
            **({RANK_TAG: str(self._rank)} if self._rank else {}),
        }
        kind = _OF_A_SERVER if uri.startswith("http") else _OF_A_FILE
        found = {name: os.environ.get(name, value) for name, value in kind.items()}
        found |= {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_CONTEXT": json.dumps(tags)}
        if _CHOSEN not in os.environ:
            # By name: an id is an error at a server of the training's own.
            found["MLFLOW_EXPERIMENT_NAME"] = tracked.experiment_name
        if self._source.artifact_root is not None:
            found[ARTIFACT_ROOT] = self._source.artifact_root
        return found

    def _throw_away(self) -> None:
        """Has MLflow write to `scratch`, where an MLflow experiment that the training chose before is not: it is put aside."""
        self._active = choose_experiment(None) if "mlflow" in sys.modules else None
        os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
        os.environ |= {
            "MLFLOW_TRACKING_URI": f"sqlite:///{self._scratch / 'mlflow.db'}",
            ARTIFACT_ROOT: str(self._scratch / "mlflow-artifacts"),
        }

    def monitor(self) -> None:
        """Starts MLflow's monitor of the machine.

        Imports mlflow, here and not in a thread: two that import the same thing may wait for each other for good.
        """
        runs = _runs()
        if self._tracked is not None and self._source is not None:
            self._monitor = runs.monitor(self._tracked.run_id, self._source.tracking_uri, self._rank)

    def end(self, status: str) -> None:
        """Ends what runs of the training's own are open, and gives the trial's run its share. Raises nothing."""
        if self.used:
            with variables.within(_ENDING):
                self._end(status)
            if self._tracked is None:
                choose_experiment(self._active)
        if self._begun and self._tracked is None:
            variables.put_back({_CHOSEN: self._chosen})

    def _end(self, status: str) -> None:
        runs, tracked, source = _runs(), self._tracked, self._source
        trial, attempt = self._lease
        if self._monitor is not None:
            self._monitor.finish()
        try:
            runs.end_active(status)
            if tracked is not None and source is not None:
                own = runs.OwnRuns(tracked, source.tracking_uri, trial, attempt, os.environ.get(_CHOSEN), self._rank or 0)
                own.end(status)
                if not self._rank:
                    own.show(self._reported())
        except Exception as error:  # noqa: BLE001 - MLflow's own are many, and the training is done
            if tracked is not None:
                line = "trial %d: what the training itself logged to MLflow may be incomplete: %s"
                _LOG.warning(line, trial, _first_line(error))


class _BeforeImport(MetaPathFinder):
    """Calls once, right before mlflow is imported or looked for, and finds nothing itself.

    Variables that were set as each attempt begins would have every trial wait for its run, also where nothing is logged.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._called = False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See MetaPathFinder."""
        if fullname == "mlflow":
            with self._lock:
                called, self._called = self._called, True
                if not called:
                    self._call()
        return None


def _runs() -> Any:
    """The module that imports mlflow."""
    return importlib.import_module("regrow.infra.mlflow.in_trial_runs")


def _first_line(error: Exception) -> str:
    return redacted(str(error)).strip().partition("\n")[0] or type(error).__name__
