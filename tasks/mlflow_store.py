"""MLflow's tracking store within a trial: what user code logs must neither collide with what is recorded, nor end the trial.

Parameters and metrics of the user's own under a name that the trial has already become `logged.NAME`; how a run ends is the
recorder's to say; and when MLflow is away, what would be written is dropped with a word about it. Imported inside of a
function, once mlflow is there.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient
from mlflow.entities import Experiment, LoggedModel, LoggedModelOutput, Metric, Param, Run, RunTag
from mlflow.models import Model
from mlflow.store.artifact.artifact_repo import verify_artifact_path
from mlflow.store.entities.paged_list import PagedList
from mlflow.tracking._model_registry import fluent as registry
from mlflow.tracking._tracking_service import utils
from mlflow.tracking._tracking_service.client import TrackingServiceClient

from regrow.tasks import mlflow_calls, mlflow_stand_ins
from regrow.tasks.forking import renewed
from regrow.tasks.mlflow_away import Reach
from regrow.tasks.mlflow_carried import Carried
from regrow.tasks.mlflow_names import PREFIX, Names

if TYPE_CHECKING:
    from regrow.tasks.mlflow_calls import Calls

VALUES, ARTIFACTS, RUNS = "the metrics, parameters and tags", "the artifacts", "the nested runs"
MODELS, VERSIONS = "the models", "the registered versions of models"
_WRITES = {
    "delete_tag": VALUES, "set_experiment_tag": VALUES, "delete_experiment_tag": VALUES, "log_inputs": "the data sets",
    "record_logged_model": MODELS, "log_logged_model_params": MODELS, "set_logged_model_tags": MODELS,
    "delete_logged_model_tag": MODELS, "delete_run": RUNS,
}
"""Methods of the store that return nothing, and of what they are told; their first argument is the id of a run or a model."""
_MOST_SEEN = 100
_CARRY_SECONDS = 30.0
"""How long the end of an attempt waits for the points of before a rewind to be carried over."""


def guard(tracking_uri: str, calls: Calls, run: Run) -> None:
    """Looks after the calls of an attempt, whose run this is."""
    get_store: Any = utils._get_store  # noqa: SLF001 - the one that MLflow's clients share; there is no public way to it
    store = get_store(tracking_uri)
    found = getattr(store, "_regrow_guard", None)
    if found is None:
        found = store._regrow_guard = _Guard(store)  # noqa: SLF001 - ours
    found.begin(tracking_uri, calls, run)


def install() -> None:
    """Once a process: what MLflow does beside its store, as far as it may not get through."""
    tracking: Any = TrackingServiceClient
    tracking._get_artifact_repo = _repository(tracking._get_artifact_repo)  # noqa: SLF001 - the one place where all artifacts pass
    table: Any = MlflowClient.log_table

    @functools.wraps(table)
    def log_table(client: MlflowClient, run_id: str, data: Any, artifact_file: str) -> None:
        """Asks first what is there."""
        found = _current(client.tracking_uri)
        if found is None:
            table(client, run_id, data, artifact_file)
        else:
            found.reach.try_(ARTIFACTS, lambda: table(client, run_id, data, artifact_file), _nothing)

    register: Any = registry._register_model  # noqa: SLF001 - what `register_model` and `log_model(registered_model_name=)` share

    @functools.wraps(register)
    def register_model(model_uri: str, name: str, *rest: Any, **options: Any) -> Any:
        found = _current(None)
        if found is None:
            return register(model_uri, name, *rest, **options)
        if found.is_lost(model_uri.partition("models:/")[2]):
            found.reach.lost(VERSIONS)
            return mlflow_stand_ins.version(name)
        return found.reach.try_(
            VERSIONS, lambda: register(model_uri, name, *rest, **options), lambda: mlflow_stand_ins.version(name)
        )

    log: Any = Model.log.__func__

    @functools.wraps(log)
    def log_model(cls: type[Model], *rest: Any, **options: Any) -> Any:
        """Asks on its way which metrics the run has at that step; where MLflow is away, none."""
        before, _within.model = getattr(_within, "model", False), True
        try:
            return log(cls, *rest, **options)
        finally:
            _within.model = before

    public: Any = MlflowClient
    public.log_table = log_table
    registry._register_model = register_model  # noqa: SLF001 - see above
    Model.log = classmethod(log_model)  # type: ignore[method-assign]  # as above


_within = threading.local()
"""`model`: whether a thread is about to log a model. `upload`: whether it looks where artifacts are to be put."""


def _nothing() -> None:
    return None


def _no_points() -> PagedList[Metric]:
    return PagedList([], None)


def _current(tracking_uri: str | None) -> _Guard | None:
    """The guard of the store at that address (None: the one in use), if it is this attempt's."""
    get_store: Any = utils._get_store  # noqa: SLF001 - as in `guard`
    found: _Guard | None = getattr(get_store(tracking_uri), "_regrow_guard", None)
    return found if found is not None and found.is_on() else None


def _repository(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def repository(client: TrackingServiceClient, resource_id: str, *, resource: str = "run") -> Any:
        found = _current(client.tracking_uri)
        if found is not None and found.is_lost(resource_id):
            return mlflow_stand_ins.Artifacts()
        before, _within.upload = getattr(_within, "upload", False), True
        try:
            repo = original(client, resource_id, resource=resource)
        finally:
            _within.upload = before
        if found is not None:
            found.look_after(repo, ARTIFACTS if resource == "run" else MODELS)
        return repo

    return repository


class _Guard:
    """In front of one store, for as long as the process lives; outside of trials it does nothing."""

    def __init__(self, store: Any) -> None:
        ours = (
            "log_batch", "log_param", "log_metric", "set_tag", "update_run_info", "create_run", "get_run", "get_experiment",
            "get_metric_history", "log_outputs", "create_logged_model", "get_logged_model", "finalize_logged_model",
        )
        self._real: dict[str, Callable[..., Any]] = {name: getattr(store, name) for name in (*ours, *_WRITES)}
        self._lock = threading.Lock()
        self._calls: Calls | None = None
        self._params: dict[str, str] = {}
        self._names = Names(tuple, (), self._late)
        self._seen: OrderedDict[str, Run | LoggedModel | Experiment] = OrderedDict()
        """What MLflow said last of what calls are about, by id."""
        self._lost: dict[str, Run | LoggedModel] = {}
        """What stands for what could not be made."""
        self.reach = Reach()
        for name in ours:
            setattr(store, name, self._switch(name, getattr(self, f"_{name}")))
        for name, kind in _WRITES.items():
            setattr(store, name, self._switch(name, functools.partial(self._write, name, kind)))
        store._async_logging_queue._logging_func = store.log_batch  # noqa: SLF001 - it holds the one from before
        self._store = store
        renewed(self)

    def renew(self) -> None:
        """A forked child opens connections of its own to a database: two processes on one would read each other's answers."""
        self._lock = threading.Lock()
        if (engine := getattr(self._store, "engine", None)) is not None:
            engine.dispose(close=False)

    def begin(self, tracking_uri: str, calls: Calls, run: Run) -> None:
        """From now on it is this attempt's run that is looked after."""
        assert calls.tracked is not None
        known = frozenset(calls.tracked.reported)
        with self._lock:
            self._calls, self._params, self.reach = calls, dict(run.data.params), Reach()
            self._lost, self._seen = {}, OrderedDict({run.info.run_id: run})
            self._names = Names(
                lambda: known.union(calls.reported()), set(run.data.metrics) - known - set(calls.reported()), self._late
            )
        if not calls.tracked.superseded:
            calls.release = self._names.release
            return
        write = functools.partial(self._write, "log_batch", VALUES, run.info.run_id)
        carried = Carried(MlflowClient(tracking_uri), calls.tracked, write)
        carried.start()

        def release() -> None:
            self._names.release()
            carried.finish(_CARRY_SECONDS)

        calls.release = release

    def is_on(self) -> bool:
        """Whether it is the attempt under way that it looks after."""
        calls = mlflow_calls.current()
        return calls is not None and calls is self._calls and calls.tracked is not None

    def is_lost(self, resource_id: str) -> bool:
        """Whether a run or a model of that id was never made."""
        return resource_id in self._lost

    def look_after(self, repo: Any, kind: str) -> None:
        """An artifact repository, which MLflow keeps: what cannot be put there is dropped."""
        if hasattr(repo, "_regrow_guard"):
            return
        repo._regrow_guard = self  # noqa: SLF001 - ours
        one, all_ = repo.log_artifact, repo.log_artifacts

        def log_artifact(local_file: Any, artifact_path: str | None = None) -> None:
            if not self.is_on():
                one(local_file, artifact_path)
                return
            verify_artifact_path(artifact_path)  # type: ignore[no-untyped-call]  # mlflow's
            with Path(local_file).open("rb"):  # a file that is not there is no matter of MLflow's
                pass
            self.reach.try_(kind, lambda: one(local_file, artifact_path), _nothing)

        def log_artifacts(local_dir: Any, artifact_path: str | None = None) -> None:
            if not self.is_on() or not Path(local_dir).is_dir():
                all_(local_dir, artifact_path)
                return
            verify_artifact_path(artifact_path)  # type: ignore[no-untyped-call]  # mlflow's
            self.reach.try_(kind, lambda: all_(local_dir, artifact_path), _nothing)

        repo.log_artifact, repo.log_artifacts = log_artifact, log_artifacts

    def _switch(self, name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
        real = self._real[name]

        @functools.wraps(real)
        def method(*arguments: Any, **options: Any) -> Any:
            return (ours if self.is_on() else real)(*arguments, **options)

        return method

    # ---- writing

    def _write(self, name: str, kind: str, *arguments: Any, **options: Any) -> None:
        """Any method that returns nothing."""
        about = next(iter((*arguments, *options.values())), None)
        if about in self._lost:
            return
        self.reach.try_(kind, lambda: self._real[name](*arguments, **options), _nothing)

    def _log_batch(
        self, run_id: str, metrics: Iterable[Metric] = (), params: Iterable[Param] = (), tags: Sequence[RunTag] = ()
    ) -> None:
        metrics = [self._of_a_model(metric) for metric in metrics]
        if self._is_ours(run_id):
            metrics = self._names.sorted_out(metrics)
            params = [kept for param in params if (kept := self._param(param)) is not None]
        if metrics or params or tags:
            self._write("log_batch", VALUES, run_id, metrics, params, tags)

    def _late(self, metrics: list[Metric]) -> None:
        """Points that have waited for their names."""
        calls = self._calls
        if calls is None or calls.tracked is None:
            return
        try:
            self._write("log_batch", VALUES, calls.tracked.run_id, metrics, [], [])
        except Exception as error:  # noqa: BLE001 - the call that they came with has long returned
            self.reach.tell(f"late {error}", f"MLflow did not take {len(metrics)} points of metrics: {error}")

    def _log_metric(self, run_id: str, metric: Metric) -> None:
        metric = self._of_a_model(metric)
        for one in self._names.sorted_out([metric]) if self._is_ours(run_id) else [metric]:
            self._write("log_metric", VALUES, run_id, one)

    def _log_param(self, run_id: str, param: Param) -> None:
        kept = self._param(param) if self._is_ours(run_id) else param
        if kept is not None:
            self._write("log_param", VALUES, run_id, kept)

    def _set_tag(self, run_id: str, tag: RunTag) -> None:
        self._write("set_tag", VALUES, run_id, tag)

    def _update_run_info(self, run_id: str, *rest: Any, **options: Any) -> Any:
        """Changes nothing of the trial's run."""
        if self._is_ours(run_id):
            return self._asked("get_run", run_id).info
        if run_id in self._lost:
            return self._get_run(run_id).info
        return self.reach.try_(
            RUNS, lambda: self._real["update_run_info"](run_id, *rest, **options), lambda: self._get_run(run_id).info
        )

    def _create_run(
        self, experiment_id: str, user_id: str, start_time: int | None, tags: Sequence[RunTag], run_name: str | None
    ) -> Any:
        given = experiment_id, user_id, start_time, tags, run_name
        if any(tag.key == "mlflow.parentRunId" and tag.value in self._lost for tag in tags or ()):
            return self._keep_lost(mlflow_stand_ins.run(*given))
        return self.reach.try_(
            RUNS, lambda: self._saw(self._real["create_run"](*given)), lambda: self._keep_lost(mlflow_stand_ins.run(*given))
        )

    def _log_outputs(self, run_id: str, models: list[LoggedModelOutput]) -> None:
        there = [model for model in models if model.model_id not in self._lost]
        if there:
            self._write("log_outputs", MODELS, run_id=run_id, models=there)

    def _create_logged_model(self, experiment_id: str, *rest: Any, **options: Any) -> Any:
        def instead() -> Any:
            return self._keep_lost(mlflow_stand_ins.model(experiment_id, *rest, **options))

        if options.get("source_run_id") in self._lost:
            return instead()
        return self.reach.try_(
            MODELS, lambda: self._saw(self._real["create_logged_model"](experiment_id, *rest, **options)), instead
        )

    def _finalize_logged_model(self, model_id: str, status: Any) -> Any:
        if model_id in self._lost:
            return self._lost[model_id]
        return self.reach.try_(
            MODELS, lambda: self._real["finalize_logged_model"](model_id, status), lambda: self._get_logged_model(model_id)
        )

    # ---- reading what writing needs

    def _get_run(self, run_id: str) -> Any:
        if self._is_ours(run_id) and not getattr(_within, "upload", False):
            self._names.release()
        return self._asked("get_run", run_id)

    def _get_experiment(self, experiment_id: str) -> Any:
        return self._asked("get_experiment", experiment_id)

    def _get_logged_model(self, model_id: str, *rest: Any, **options: Any) -> Any:
        return self._asked("get_logged_model", model_id, *rest, **options)

    def _get_metric_history(self, run_id: str, *rest: Any, **options: Any) -> Any:
        if self._is_ours(run_id):
            self._names.release()
        if run_id in self._lost:
            return _no_points()
        real = functools.partial(self._real["get_metric_history"], run_id, *rest, **options)
        return self.reach.try_(MODELS, real, _no_points) if getattr(_within, "model", False) else real()

    def _asked(self, name: str, about: str, *rest: Any, **options: Any) -> Any:
        """What MLflow says, else what it said last; where it said nothing before, what it raises."""
        if about in self._lost:
            return self._lost[about]
        real = functools.partial(self._real[name], about, *rest, **options)
        if about not in self._seen:
            return self._saw(real())
        return self.reach.try_(VALUES, lambda: self._saw(real()), lambda: self._seen[about])

    def _saw(self, found: Any) -> Any:
        about = _id(found)
        with self._lock:
            self._seen[about] = found
            self._seen.move_to_end(about)
            if len(self._seen) > _MOST_SEEN:
                # Not the trial's own run, which is asked for until the end.
                del self._seen[next(key for key in self._seen if not self._is_ours(key))]
        return found

    def _keep_lost(self, made: Any) -> Any:
        self._lost[_id(made)] = made
        return made

    # ---- names

    def _is_ours(self, run_id: str) -> bool:
        return self._calls is not None and self._calls.tracked is not None and self._calls.tracked.run_id == run_id

    def _of_a_model(self, metric: Metric) -> Metric:
        return Metric(**(dict(metric) | {"model_id": None})) if metric.model_id in self._lost else metric

    def _param(self, param: Param) -> Param | None:
        with self._lock:
            for key in (param.key, PREFIX + param.key):
                if self._params.setdefault(key, str(param.value)) == str(param.value):
                    return Param(key, param.value)
        self.reach.tell(param.key, f"the parameter {param.key!r} was logged with a third value, which MLflow cannot hold")
        return None


def _id(of: Run | LoggedModel | Experiment) -> str:
    found: str = of.info.run_id if isinstance(of, Run) else of.model_id if isinstance(of, LoggedModel) else of.experiment_id
    return found
