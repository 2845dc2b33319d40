"""A training's own MLflow calls: which of MLflow's variables are set during an attempt. No part of
MLflow is replaced.

What a training logs goes to separate MLflow runs below the trial's run, which only the recorder
writes. They cannot share one run: a later attempt logs a parameter with another value, which MLflow
refuses; a metric that is both logged and reported would have each point twice; and MLFLOW_RUN_ID is
used up by the first `start_run`, and is an error after `set_experiment` or at another server.

Nothing here imports mlflow, which takes 1.4 s of CPU and 100 MB: a worker whose training does not
use it does not need it.
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
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import msgspec

from regrow.infra.machine.sqlite import file_of, uri_of, url_of
from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.database import make_sure_of
from regrow.infra.mlflow.private import ARTIFACT_ROOT, choose_experiment
from regrow.infra.mlflow.updates import EXPERIMENT_TAG, first_line
from regrow.tasks.errors import UserError
from regrow.tasks.ports.messages import RecordsAway
from regrow.tasks.process import variables
from regrow.tasks.process.forking import renewed
from regrow.tasks.trial.names import task_name

_LOG = logging.getLogger("regrow.trial")
PARENT_TAG, TRIAL_TAG, ATTEMPT_TAG, RANK_TAG = (
    "mlflow.parentRunId",
    "regrow.logged_in",
    "regrow.attempt",
    "regrow.rank",
)
"""Tags of a training's own run: the trial's run, the trial's name, the attempt, and the worker's
rank if it is not 0.
"""
PATIENCE_SECONDS = 60.0
"""Seconds to wait for the trial's run while no obstacle is known."""
TROUBLE_SECONDS = 3.0
"""Seconds that it waits if the recorder reports that MLflow is unavailable."""
CHECK_SECONDS = 5.0
"""Seconds for MLflow to answer the worker's first request."""
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # Waits about a minute for an unavailable server. MLflow's own 7 retries, of up to 120 s each,
    # take a quarter of an hour.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
_OF_A_SERVER = {"MLFLOW_ENABLE_ASYNC_LOGGING": "true"}
"""MLflow's threads send: an unavailable server neither blocks the training nor ends it."""
_OF_A_FILE = {"MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool"}
"""A forked child that continued with its parent's connection could damage the file."""
_ENDING = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Limits while an attempt ends, because the next attempt needs its slot."""
_CHOSEN = "MLFLOW_EXPERIMENT_ID"
"""Variable with the MLflow experiment that the training chose. Also set by `mlflow.set_experiment`,
whose choice holds in the whole process.
"""
_SET = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_RUN_CONTEXT",
    "MLFLOW_RUN_ID",
    ARTIFACT_ROOT,
    *_SETTINGS,
    *_OF_A_SERVER,
    *_OF_A_FILE,
)


class Tracked(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt is recorded.

    Attributes:
        run_id: the trial's MLflow run.
        experiment_id: the MLflow experiment of that run.
        experiment_name: the name of that MLflow experiment.
        id: the regrow experiment.

    """

    run_id: str
    experiment_id: str
    experiment_name: str
    id: str


class RunSource(Protocol):
    """Tells where an attempt is recorded: the recorder, as seen by a worker."""

    tracking_uri: str
    """May contain a password: pass it only to MLflow's client."""
    artifact_root: str | None
    """Root of MLflow's artifacts if they are files; None: decided by MLflow, or its server."""

    def run_of(self, trial: int, attempt: int) -> tuple[Tracked | None, str | None]:
        """Return where an attempt is recorded, None if that does not exist after waiting about a
        second; and what prevents it, if known. Does not raise.
        """
        ...


class RayRecords:
    """The Records port, and its source, by a handle of the recorder. Sent to the workers."""

    def __init__(self, actor: Any, tracking_uri: str, artifact_root: str | None) -> None:
        self._actor = actor
        self.tracking_uri, self.artifact_root = tracking_uri, artifact_root

    def own_calls(
        self,
        trial: int,
        attempt: int,
        *,
        scratch: Path,
        reported: Callable[[], Collection[str]],
        system_metrics: bool,
        rank: int | None = None,
    ) -> AbstractContextManager[object]:
        """See Records."""
        lease, load = (trial, attempt), system_metrics
        return own_calls(self, lease, scratch, reported=reported, system_metrics=load, rank=rank)

    def run_of(self, trial: int, attempt: int) -> tuple[Tracked | None, str | None]:
        """See Source."""
        import ray

        try:
            found: tuple[Tracked | None, str | None] = ray.get(
                self._actor.run_of.remote(trial, attempt), timeout=10.0
            )
        except ray.exceptions.GetTimeoutError:  # busy, as many workers ask at once
            return None, None
        except ray.exceptions.RayError as error:
            return None, f"the recorder does not answer: {error}"
        return found


@contextmanager
def own_calls(
    source: RunSource | None,
    lease: tuple[int, int],
    scratch: Path,
    *,
    reported: Callable[[], Collection[str]],
    system_metrics: bool = False,
    rank: int | None = None,
) -> Iterator[None]:
    """Within the block, record what a training logs with MLflow in runs below the trial's run.

    Raises RecordsAway in place of an error of MLflow that means that its server is unavailable.

    Args:
        source: tells where the attempt is recorded; None: the calls go to a place in `scratch`.
        lease: the trial and the attempt.
        scratch: folder for what cannot be recorded.
        reported: returns the names of the metrics that the trial reports.
        system_metrics: imports mlflow, whose monitor records the machine's load in the trial's run.
        rank: the worker's rank, None if it is the only one. Each worker logs to its own runs; only
            rank 0 copies values to the trial's run.

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
            raise RecordsAway(
                f"MLflow was away when the training called it: {first_line(error)}"
            ) from error
        raise
    except SystemExit as end:  # as of a script: other codes and texts are a failure
        status = "FINISHED" if end.code in (None, 0) else "FAILED"
        raise
    finally:
        # A child that the training has forked may run this on its way out.
        if os.getpid() == process:
            calls.end(status)
            if trigger in sys.meta_path:
                sys.meta_path.remove(trigger)
            variables.put_back(before)


@contextmanager
def discard_mlflow_calls() -> Iterator[None]:
    """Discard MLflow's calls within the block, of a module that is imported to be checked."""
    # MLflow's messages at its first use concern only what is discarded.
    quiet = {"MLFLOW_LOGGING_LEVEL": os.environ.get("MLFLOW_LOGGING_LEVEL", "WARNING")}
    temporary = tempfile.TemporaryDirectory(prefix="regrow-mlflow-", ignore_cleanup_errors=True)
    with (
        temporary as scratch,
        variables.within(quiet),
        own_calls(None, (0, 0), Path(scratch), reported=tuple),
    ):
        yield


@dataclass(eq=False)
class _Calls:
    """The MLflow calls of one attempt, from the moment when MLflow may be used."""

    source: RunSource | None
    lease: tuple[int, int]
    scratch: Path
    reported: Callable[[], Collection[str]]
    rank: int | None
    tracked: Tracked | None = None
    begun: bool = False
    forked: bool = False
    system: Any = None
    """MLflow's monitor of the machine."""
    chosen: str | None = None
    active: str | None = None
    """The MLflow experiments chosen before, by variable and by `set_experiment`; None: none."""

    def __post_init__(self) -> None:
        renewed(self)

    def renew(self) -> None:
        """Adapt to a fork: the child has neither MLflow's threads nor the recorder's connection."""
        self.forked = True
        if self.begun:
            os.environ |= dict.fromkeys(_OF_A_SERVER, "false")

    @property
    def used(self) -> bool:
        """Whether mlflow was imported; then anything may have been logged."""
        return self.begun and "mlflow" in sys.modules

    def begin(self) -> None:
        """Set the variables once the trial's run exists, else the place in `scratch`."""
        self.begun = True
        self.tracked, why = self._find()
        if self.tracked is None and self.source is not None:
            _LOG.warning(
                "trial %d: what the training itself logs to MLflow is lost in this attempt: %s",
                self.lease[0],
                why,
            )
        os.environ.pop("MLFLOW_RUN_ID", None)
        if self.tracked is None or "mlflow" not in sys.modules:
            # Before mlflow is imported the training cannot have chosen: the variable is from the
            # program that started the worker (for example `mlflow run`).
            self.chosen = os.environ.pop(_CHOSEN, None)
        if self.tracked is None:
            # An MLflow experiment that the training chose before does not exist in `scratch`.
            self.active = choose_experiment(None) if "mlflow" in sys.modules else None
            os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
            place = url_of(self.scratch / "mlflow.db")
            with suppress(OSError):  # then MLflow says why
                make_sure_of(place, None)  # by itself MLflow takes a second or more of CPU
            os.environ |= {
                "MLFLOW_TRACKING_URI": place,
                ARTIFACT_ROOT: uri_of(self.scratch / "mlflow-artifacts"),
            }
        else:
            os.environ |= self._variables(self.tracked)
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)

    def _find(self) -> tuple[Tracked | None, str]:
        if self.source is None:
            return None, ""
        if self.forked:
            why = "this is a process that the training forked before it imported mlflow itself"
            return None, f"{why}; import it before"
        began = time.monotonic()
        while True:
            tracked, trouble = self.source.run_of(*self.lease)
            if tracked is not None:
                break
            patience = PATIENCE_SECONDS if trouble is None else TROUBLE_SECONDS
            if time.monotonic() - began > patience:
                late = f"it did not have the trial's run within {PATIENCE_SECONDS:.0f} s"
                return None, trouble or late
        if (file := file_of(self.source.tracking_uri)) is not None and not file.is_file():
            # The recorder has created the file by now, on another machine; one created here would
            # not be read.
            why = "MLflow's records are a file on the driver's machine, which is not this one"
            hint = "with a tracking server in MLFLOW_TRACKING_URI they can be had from all"
            return None, f"{why}; {hint}"
        try:
            check(self.source.tracking_uri, CHECK_SECONDS)
        except UserError as error:  # the recorder reaches it, this machine does not
            return None, str(error)
        return tracked, ""

    def _variables(self, tracked: Tracked) -> dict[str, str]:
        assert self.source is not None
        (trial, attempt), uri = self.lease, self.source.tracking_uri
        who = f", rank {self.rank}" if self.rank else ""
        tags = {
            "mlflow.runName": f"attempt {attempt} of {task_name(trial)}{who}",
            PARENT_TAG: tracked.run_id,
            EXPERIMENT_TAG: tracked.id,
            TRIAL_TAG: task_name(trial),
            ATTEMPT_TAG: str(attempt),
            **({RANK_TAG: str(self.rank)} if self.rank else {}),
        }
        kind = _OF_A_SERVER if uri.startswith("http") else _OF_A_FILE
        found = {name: os.environ.get(name, value) for name, value in kind.items()}
        found |= {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_CONTEXT": json.dumps(tags)}
        if _CHOSEN not in os.environ:
            # By name: an id is an error at a server that the training chose.
            found["MLFLOW_EXPERIMENT_NAME"] = tracked.experiment_name
        if self.source.artifact_root is not None:
            found[ARTIFACT_ROOT] = self.source.artifact_root
        return found

    def monitor(self) -> None:
        """Start MLflow's monitor of the machine.

        Imports mlflow, here and not in a thread: two threads that import the same module may
        deadlock.
        """
        runs = _runs()
        if self.tracked is not None and self.source is not None:
            uri = self.source.tracking_uri
            self.system = runs.monitor(self.tracked.run_id, uri, self.rank)

    def end(self, status: str) -> None:
        """End the training's open runs, and copy values to the trial's run. Does not raise."""
        if self.used:
            with variables.within(_ENDING):
                self._end(status)
            if self.tracked is None:
                choose_experiment(self.active)
        if self.begun and self.tracked is None:
            variables.put_back({_CHOSEN: self.chosen})

    def _end(self, status: str) -> None:
        runs, tracked, source = _runs(), self.tracked, self.source
        if self.system is not None:
            self.system.finish()
        try:
            runs.end_active(status)
            if tracked is not None and source is not None:
                runs.settle(
                    tracked,
                    source.tracking_uri,
                    self.lease,
                    status,
                    chosen=os.environ.get(_CHOSEN),
                    rank=self.rank or 0,
                    reported=self.reported,
                )
        except Exception as error:  # noqa: BLE001 - MLflow raises many types, and the training is done
            if tracked is not None:
                line = "trial %d: what the training itself logged to MLflow may be incomplete: %s"
                _LOG.warning(line, self.lease[0], first_line(error))


class _BeforeImport(MetaPathFinder):
    """Calls `call` once, right before mlflow is imported or searched for, and never finds a module
    itself.

    If the variables were set as each attempt begins, every trial would wait for its run, even if
    nothing is logged.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._lock = threading.RLock()  # `call` itself looks for mlflow's migrations
        self._called = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        if fullname == "mlflow":
            with self._lock:
                called, self._called = self._called, True
                if not called:
                    self._call()
        return None


def _runs() -> Any:
    return importlib.import_module("regrow.infra.mlflow.in_trial_runs")
