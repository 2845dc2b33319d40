"""The user's own calls of MLflow in a trainable, `mlflow.log_*`, `start_run` and autologging: they go to the trial's run.

The run is found when it is first needed, by whatever thread, and is that thread's active run from the beginning. How it
ends is the recorder's to say. MLflow away is told in the trial's log, and the trial goes on.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regrow.tasks import variables
from regrow.tasks.addresses import shown
from regrow.tasks.forking import renewed
from regrow.tasks.mlflow_import import when_imported
from regrow.tasks.mlflow_port import Records, Tracked

_LOG = logging.getLogger("regrow.trial")
PATIENCE_SECONDS = 60.0
"""How long the first call waits for the recorder to have made the run, as long as nothing is known to be in the way."""
TROUBLE_SECONDS = 3.0
"""How long it waits for one that says that MLflow is away."""
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # MLflow's own (7 retries of up to 120 s) would hold a trial for minutes when a server goes away.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Read by MLflow at import or at each call; a user's own setting wins."""
_ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
"""MLflow's own; without it a database's store takes ./mlruns."""


class Calls:
    """The calls of one attempt. `run` is where they go; it may be asked from any thread."""

    def __init__(
        self, records: Records | None, lease: tuple[int, int], scratch: Path, reported: Callable[[], Collection[str]]
    ) -> None:
        """`reported`: names of the metrics that the trial reports, which are recorded without the user's doing."""
        self._records, self._lease, self._scratch = records, lease, scratch
        self.reported = reported
        self.tracked: Tracked | None = None
        self.active: Any = None
        self.release: Callable[[], None] | None = None
        """Writes what waits; known with the run."""
        self._sought = self._forked = False
        self._lock = threading.RLock()
        self.asked = False
        renewed(self)

    def renew(self) -> None:
        """A forked child has the run if its parent had it; the recorder, which it would be asked of, it cannot reach."""
        self._lock = threading.RLock()
        self._forked = True

    def uri(self) -> str:
        """Where MLflow's client looks within the trial."""
        if self._records is None or (self._sought and self.tracked is None):
            return f"sqlite:///{self._scratch / 'mlflow.db'}"
        return self._records.tracking_uri

    def run(self) -> Any:
        """The trial's run as MLflow's active one; None if it cannot be had: then calls lead to a place that is thrown away."""
        with self._lock:
            if not self._sought:
                self.asked = True
                self.tracked, why = self._find()
                if self.tracked is not None:
                    try:
                        self.active = self._activate(self.tracked)
                    except Exception as error:  # noqa: BLE001 - MLflow's own are many
                        self.tracked, why = None, shown(str(error)).strip().partition("\n")[0]
                self._sought = True
                if self.tracked is None:
                    self._throw_away(why)
            return self.active

    def _find(self) -> tuple[Tracked | None, str]:
        if self._records is None:
            return None, ""
        if self._forked:
            return None, (
                "this is a process that the trainable started before it used MLflow itself; call any function of mlflow before,"
                " mlflow.active_run() say"
            )
        scheme, _, place = self._records.tracking_uri.partition(":///")
        if scheme == "sqlite" and "?" not in place and not Path(place).is_file():
            # It would be made here, for nobody.
            return None, (
                "MLflow's records are a file on the driver's machine, which is not this one; with a tracking server in"
                " MLFLOW_TRACKING_URI they can be had from all"
            )
        began = time.monotonic()
        while True:
            tracked, trouble = self._records.run_of(*self._lease)
            if tracked is not None:
                return tracked, ""
            if time.monotonic() - began > (PATIENCE_SECONDS if trouble is None else TROUBLE_SECONDS):
                return None, trouble or f"it did not have the trial's run within {PATIENCE_SECONDS:.0f} s"

    def _activate(self, tracked: Tracked) -> Any:
        from mlflow import ActiveRun
        from mlflow.tracking import MlflowClient

        from regrow.tasks.mlflow_store import guard

        assert self._records is not None
        client = MlflowClient(self._records.tracking_uri)
        run = client.get_run(tracked.run_id)
        self.tracked = tracked
        guard(self._records.tracking_uri, self, run)
        client.get_experiment(tracked.experiment_id)  # nested runs ask for it, also when MLflow is away by then
        os.environ["MLFLOW_EXPERIMENT_ID"] = tracked.experiment_id
        return ActiveRun(run)  # type: ignore[no-untyped-call]  # mlflow's

    def _throw_away(self, why: str) -> None:
        import mlflow

        if self._records is not None:
            _LOG.warning(
                "trial %d: what the trainable itself logs to MLflow is lost in this attempt: %s", self._lease[0], why
            )
        os.environ[_ARTIFACT_ROOT] = str(self._scratch / "mlflow-artifacts")
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
        mlflow.set_tracking_uri(self.uri())


_current: Calls | None = None
_installed: list[bool] = []


def current() -> Calls | None:
    """The attempt that this process works on, if its own calls are looked after."""
    return _current


@contextmanager
def own_calls(
    records: Records | None, lease: tuple[int, int], scratch: Path, *, reported: Callable[[], Collection[str]],
    system_metrics: bool = False,
) -> Iterator[None]:
    """Within the block, MLflow's calls go to the run of the attempt `lease`; with `records` None, to a place in `scratch`.

    `system_metrics`: also imports mlflow and has its monitor record the machine's load in that run.
    """
    global _current  # noqa: PLW0603 - what MLflow's functions, replaced once a process, look at
    settings = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    before = {name: os.environ.get(name) for name in (_ARTIFACT_ROOT, "MLFLOW_EXPERIMENT_ID", "MLFLOW_TRACKING_URI")}
    os.environ.update(settings)
    calls = Calls(records, lease, scratch, reported)
    outer, _current = _current, calls
    undo: list[Callable[[], None]] = []
    monitor = _Monitor(calls) if system_metrics and records is not None else None
    try:
        with when_imported(lambda: undo.append(_begin(calls))):
            if monitor is not None:
                # Not in a thread: two that import the same thing may wait for each other for good.
                monitor.prepare()
                monitor.start()
            yield
    finally:
        if monitor is not None:
            monitor.finish()
        for step in undo:
            step()
        _current = outer
        variables.put_back(before | dict.fromkeys(settings))


@contextmanager
def nowhere() -> Iterator[None]:
    """Within the block MLflow's calls lead to a place that is thrown away: a module that is only looked at may make some."""
    # What MLflow says at its first use is not about anything that stays.
    quiet = {"MLFLOW_LOGGING_LEVEL": os.environ.get("MLFLOW_LOGGING_LEVEL", "WARNING")}
    temporary = tempfile.TemporaryDirectory(prefix="regrow-mlflow-", ignore_cleanup_errors=True)
    with temporary as scratch, variables.within(quiet), own_calls(None, (0, 0), Path(scratch), reported=tuple):
        yield


def _begin(calls: Calls) -> Callable[[], None]:
    """After mlflow was imported: its client looks where ours is, and each thread has the trial's run as the active one."""
    import mlflow
    from mlflow.tracking import fluent
    from mlflow.tracking._tracking_service import utils

    if not _installed:
        _installed.append(True)
        _install(fluent)
    records = calls._records  # noqa: SLF001 - one thing in two functions
    if records is not None and records.artifact_root is not None:
        os.environ[_ARTIFACT_ROOT] = records.artifact_root
    elif records is None:
        os.environ[_ARTIFACT_ROOT] = str(calls._scratch / "mlflow-artifacts")  # noqa: SLF001 - as above
    before = utils._tracking_uri  # noqa: SLF001 - None, where it was never set, cannot be asked for otherwise
    mlflow.set_tracking_uri(calls.uri())
    stack: Any = fluent._active_run_stack  # noqa: SLF001 - as in `_install`
    stack.reset()
    chosen = fluent._active_experiment_id  # noqa: SLF001 - what `set_experiment` sets for good
    fluent._active_experiment_id = None  # noqa: SLF001 - as above

    def end() -> None:
        if calls.asked:
            if calls.release is not None:
                with suppress(Exception):
                    calls.release()
            for flush in (mlflow.flush_async_logging, mlflow.flush_artifact_async_logging):
                with suppress(Exception):
                    flush()
        stack.reset()  # ending the run would also say how it ended
        fluent._active_experiment_id = chosen  # noqa: SLF001 - as above
        mlflow.set_tracking_uri(before)  # type: ignore[arg-type]  # None is what it was

    return end


def _install(fluent: Any) -> None:
    """Once a process: user code keeps references to MLflow's functions from trial to trial.

    MLflow's stack of active runs is a variable of each thread with a factory of its first value, which is replaced: there is
    no public way to have an active run in threads that are not ours (3.17).
    """
    import mlflow

    from regrow.tasks.mlflow_start import experiment_setter, run_ender, run_starter
    from regrow.tasks.mlflow_store import install

    def first() -> list[Any]:
        calls = _current
        if calls is None or mlflow.get_tracking_uri() != calls.uri():  # the user's own server: their own runs
            return []
        run = calls.run()
        return [] if run is None else [run]

    fluent._active_run_stack.default_factory = first  # noqa: SLF001 - see above
    wrappers = {"start_run": run_starter, "end_run": run_ender, "set_experiment": experiment_setter}
    for name, wrap in wrappers.items():
        wrapped = wrap(getattr(fluent, name), fluent)
        setattr(fluent, name, wrapped)
        setattr(mlflow, name, wrapped)
    install()


class _Monitor(threading.Thread):
    """Starts MLflow's monitor of CPU, memory, disk, network and GPU beside the trial, once its run is there."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(name="regrow-system-metrics", daemon=True)
        self._calls = calls
        self._ended = threading.Event()
        self._monitor: Any = None

    def prepare(self) -> None:
        """Imports what it takes."""
        try:
            importlib.import_module("mlflow.system_metrics.system_metrics_monitor")
        except ImportError as error:
            self._ended.set()
            _LOG.warning("system metrics are not recorded: %s (`pip install psutil`)", error)

    def run(self) -> None:
        """See Thread."""
        if self._ended.is_set():
            return
        try:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            run = self._calls.run()
            if run is None or self._ended.is_set():
                return
            uri = self._calls.uri()
            self._monitor = SystemMetricsMonitor(run.info.run_id, resume_logging=True, tracking_uri=uri)  # type: ignore[no-untyped-call]
            self._monitor.start()
        except Exception as error:  # noqa: BLE001 - the trial goes on without
            _LOG.warning("system metrics are not recorded: %s: %s", type(error).__name__, error)

    def finish(self) -> None:
        """Ends the monitoring; what it measured is written."""
        self._ended.set()
        self.join(timeout=10.0)
        if self._monitor is not None:
            self._monitor.finish()
