"""The canary: each name of other people's libraries that their documentation does not promise, and
what breaks without it.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from docs.site import rooms
from regrow.infra.ray import private
from tests.unit.foreign import PRIVATE, used

RAY = {
    "ray._private.services:canonicalize_bootstrap_address(addr)": "each cluster of a user's own is said not to be there",
    "ray._raylet:GcsClient": "the same",
    "ray._raylet:Config.initialize": "no local cluster starts in a process that imported Ray before",
    "ray._raylet:AuthenticationTokenLoader.instance": "the same",
    "ray._private.state:state.get_draining_nodes()": "no experiment starts, as the nodes cannot be looked at",
    "ray._private.state:state.actor_table(actor_id, job_id, actor_state_name)": "children that find no room are not told of",
    "ray._private.worker:global_worker": "the same",
    "ray.core.generated.common_pb2:Address": "the same",
    "ray._private.worker:global_worker.function_actor_manager": "a process whose functions a trial has replaced runs further ones",
    "ray._private.function_manager:FunctionActorManager._num_task_executions": "the same",
    "ray._raylet:InnerGcsClient.drain_node": "a node with a notice is not drained: Ray continues placing tasks on it",
    "ray._private.worker:listen_error_messages(worker, threads_stopped)": "Ray prints into the live view and into JSON that a worker was lost",
    "ray._private.utils:set_sigterm_handler(sigterm_handler)": "SIGTERM while Ray starts ends the driver anywhere",
    "ray._raylet:__file__": "the same",
    "ray._private.parameter:RayParams(no_monitor, include_log_monitor)": "two processes more, ray.init takes 2 s longer",
    "ray._private.services:start_api_server(include_dashboard, raise_on_failure)": "one process more, ray.init takes 2 s longer",
    "ray._private.utils:get_dashboard_dependency_error()": "the driver imports what a dashboard needs, 0.3 s",
    "ray.scripts.scripts:start": "no agent has a node of Ray's",
    "ray.dashboard.modules.job.cli:job_cli_group": "each agent takes 0.1 s of CPU more to start",
    "ray.scripts.scripts:get_ray_client_dependency_error()": "a process more on a leader's machine, 90 MB, and a second leader there finds its port taken",
    "ray._private.services:resolve_ip_for_localhost(host)": "agents on one machine without a network do not find each other",
    "ray._private.runtime_env.packaging:get_excludes_from_ignore_files(path, include_gitignore, logger)": "no project is sent to machines",
    "ray._raylet:persist_port": "a dashboard's agent runs, 80 MB and 2 s longer until a local cluster is there",
    "ray._raylet:METRICS_AGENT_PORT_NAME": "the same",
    "ray._raylet:METRICS_EXPORT_PORT_NAME": "the same",
    "ray._raylet:DASHBOARD_AGENT_LISTEN_PORT_NAME": "the same",
    "ray.serve.deployment:Deployment.options(version, _internal)": "a model that `regrow serve --ray` changes to begins in new replicas",
    "ray:init(_memory, _node_ip_address, _temp_dir)": "no local cluster starts",
    "ray._private.ray_constants:ENABLE_RAY_CLUSTER": "no local cluster starts, as no node is at 127.0.0.1: Ray makes an interface's address of it",
    "ray._private.services:get_node(gcs_address, node_id)": "a local cluster on a busy machine is given up after 30 s",
    "ray._private.services:ConsolePopen": "Ctrl-C ends the cluster before the last checkpoints, workers have Prefect's key, a dead raylet is not noticed",
}
RLLIB = {
    "ray.rllib.core.learner.learner:Learner._optimizer_lr_schedules": "a trial of RLlib's that continues from a checkpoint does not: it fails",
    "ray.rllib.core.learner.learner:Learner._set_optimizer_lr(optimizer, lr)": "the same",
    "ray.tune.trainable.trainable:DEFAULT_STORAGE_PATH": "no trial of RLlib's begins",
}
TUNE = {
    "ray.train._internal.session:_session": "a script of Ray Tune's finds no session: each trial ends at its first tune.report",
    "ray.train._internal.session:_TrainingResult(checkpoint, metrics)": "no class trainable of Ray Tune's continues from a checkpoint",
    "ray.tune.trainable.trainable:TRIAL_INFO": "a class trainable of Ray Tune's does not know its trial",
    "ray.tune.trainable.trainable:Trainable._setup_logdir()": "each trial of a class trainable leaves a folder in the user's home",
    "ray.tune.impl.tuner_internal:run(fail_fast, resume, restore, resume_config)": "tune.run of Ray Tune's scripts ends with a traceback",
    "ray.train.constants:DEFAULT_STORAGE_PATH": "a script of Ray Tune's that restores below the user's home does not find its experiment",
    "ray.tune.stopper:CombinedStopper._stoppers": "combined Stoppers of Ray Tune's end trials, but not the experiment",
    "ray.tune.search:Repeater._set_index": "a Repeater of Ray Tune's is refused with a traceback",
    "ray.tune.stopper:TimeoutStopper._timeout_seconds": "a TimeoutStopper of Ray Tune's is refused with a traceback",
}
PREFECT = {
    "prefect.task_engine:run_task_async(task, task_run_id, task_run, parameters, wait_for, return_type, dependencies)": "no task run is carried out",
    "prefect.flow_engine:run_flow(flow, flow_run, parameters, return_type)": "no experiment starts or continues",
    "prefect.utilities.engine:emit_task_run_state_change_event(task_run, initial_state, validated_state)": "the server hears of no task run's beginning, nor why one continues",
    "prefect.events.worker:EventsWorker.set_client_override(client_type)": "each event that a server which is away cannot take holds up all others for 8 s, and the end of the process",
    "prefect.events.worker:emit_events_to_cloud()": "events for Prefect Cloud would be sent by the client for servers of one's own",
    "prefect.events.clients:PrefectEventsClient(reconnection_attempts, checkpoint_interval)": "the same, and a server that is back hears of it after half a minute",
    "prefect.context:refresh_global_settings_context()": "who imported Prefect before tells another server",
    "prefect.logging.configuration:setup_logging()": "the same for logs",
    "prefect.server.api.server:create_app": "the embedded server does not start",
    "prefect.server.schemas.schedules:CronSchedule.get_dates(n, start)": "no schedule is made or listed, as its times are not known",
    "prefect.server.schemas.schedules:IntervalSchedule.get_dates(n, start)": "the same",
    "prefect.server.schemas.schedules:RRuleSchedule.get_dates(n, start)": "the same",
}
MLFLOW = {
    "mlflow.tracking.fluent:_active_experiment_id": "a training's MLflow experiment stands for the next one in its process, too",
    "mlflow.store.tracking.dbmodels.models:SqlRun.__table__": "metrics are written through the public client: 15 ms of CPU a trial, not 0.5",
    "mlflow.store.tracking.dbmodels.models:SqlParam.__table__": "the same",
    "mlflow.store.tracking.dbmodels.models:SqlTag.__table__": "the same",
    "mlflow.store.tracking.dbmodels.models:SqlMetric.__table__": "the same",
    "mlflow.store.tracking.dbmodels.models:SqlLatestMetric.__table__": "the same",
    "mlflow.store.tracking.sqlalchemy_store:SqlAlchemyStore(db_uri, default_artifact_root)": "the same",
    "mlflow.store.tracking.sqlalchemy_store:SqlAlchemyStore.ManagedSessionMaker": "the same",
    "mlflow.store.tracking:DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH": "the same",
    "mlflow.utils.uri:append_to_uri_path(uri)": "the same",
    "mlflow.store.db.utils:create_sqlalchemy_engine(db_uri)": "no experiment that records into a new file starts",
    "mlflow.store.db.utils:_initialize_tables(engine)": "the same",
    "mlflow.server.fastapi_app:app": "`regrow ui` does not start",
    "mlflow.system_metrics.system_metrics_monitor:SystemMetricsMonitor(run_id, resume_logging, tracking_uri)": "`mlflow: {system_metrics: true}` records nothing, and says so",
    "mlflow.system_metrics.system_metrics_monitor:SystemMetricsMonitor.node_id": "all workers of a trial record under one name",
}
_TPE, _KERNELS = (
    "optuna.samplers._tpe.parzen_estimator",
    "optuna.samplers._tpe.probability_distributions",
)
OPTUNA = {
    f"{_TPE}:_ParzenEstimator(observations, search_space, parameters)": "tpe and bohb propose nothing",
    f"{_TPE}:_ParzenEstimator._mixture_distribution": "the same from 200 trials on",
    f"{_TPE}:_ParzenEstimator._search_space": "the same from 200 trials on",
    f"{_KERNELS}:_BatchedCategoricalDistributions.weights": "the same from 200 trials on",
    f"{_KERNELS}:_BatchedDistributions": "the same from 200 trials on",
    f"{_KERNELS}:_BatchedTruncLogNormDistributions": "the same from 200 trials on",
    f"{_KERNELS}:_BatchedTruncNormDistributions": "the same from 200 trials on",
    f"{_KERNELS}:_unique_inverse_2d(a, b)": "the same from 200 trials on",
    "optuna.samplers._tpe.sampler:_RELATIVE_PARAMS_KEY": "proposals that run are not kept away from",
    "optuna.samplers._tpe.sampler:default_gamma(x)": "tpe and bohb propose nothing",
    "optuna.search_space.group_decomposed:_SearchSpaceGroup.add_distributions": "tpe with `group` proposes nothing",
    "optuna.search_space.group_decomposed:_SearchSpaceGroup.search_spaces": "the same",
    **dict.fromkeys(
        (
            f"optuna.samplers:TPESampler.{name}"
            for name in (
                "_is_multivariate",
                "_sample_relative",
                "_group",
                "_search_space_group",
                "_n_startup_trials",
                "_constant_liar",
                "_random_sampler",
                "_parzen_estimator_parameters",
                "_rng",
                "_n_ei_candidates",
                "_compare",
                "_compute_acquisition_func",
            )
        ),
        "tpe and bohb propose nothing",
    ),
    **dict.fromkeys(
        (
            f"optuna.samplers:CmaEsSampler.{name}"
            for name in (
                "_attr_key_optimizer",
                "_get_solution_trials(trials, generation)",
                "_init_optimizer(trans, direction)",
                "_restore_optimizer(completed_trials)",
                "_split_optimizer_str(optimizer_str)",
                "_with_margin",
            )
        ),
        "a study of `regrow.optuna` with CmaEsSampler proposes nothing, or logs pickles",
    ),
    "optuna._transform:_SearchSpaceTransform(search_space, transform_step, transform_0_1)": "the same",
    "optuna._transform:_SearchSpaceTransform.transform(params)": "the same",
    "optuna.trial:FrozenTrial._validate()": "`study.add_trial` adds nothing",
    "optuna.trial:FrozenTrial._trial_id": "trials that wait are not among `study.trials`",
    "optuna.samplers:BaseGASampler._get_generation_key": "nsga2 and nsga3 begin with trials that they did not propose",
    "optuna.storages:InMemoryStorage._studies": "no sampler of Optuna's proposes anything but tpe",
    "optuna.storages:InMemoryStorage._trial_id_to_study_id_and_number": "the same",
    "optuna.distributions:BaseDistribution._contains": "define-by-run trials are given no value",
    "optuna.samplers._lazy_random_state:LazyRandomState._rng": "a study of `regrow.optuna` does not know its sampler's seed",
    "optuna.storages._rdb:models": "`regrow export --optuna` writes nothing",
    **dict.fromkeys(
        (
            f"optuna.storages._rdb.models:{name}"
            for name in (
                "StudyModel",
                "StudyDirectionModel",
                "StudyUserAttributeModel",
                "StudySystemAttributeModel",
                "TrialModel",
                "TrialParamModel",
                "TrialValueModel.value_to_stored_repr",
                "TrialUserAttributeModel",
                "TrialSystemAttributeModel",
                "TrialIntermediateValueModel.intermediate_value_to_stored_repr",
            )
        ),
        "the same",
    ),
}
PYTHON = {
    "threading:_threading_atexits": "a process that a trial forks ends with exit code 1, which is an error for a data loader",
    "multiprocessing.util:_run_finalizers(minpriority)": "pools of a trial continue after its end and start their workers again",
    "sys:_getframe": "what a trial logs is in its output twice",
    "sys:_current_frames": "a trial that hangs is reported without its stacks",
}
PROMETHEUS = {
    "prometheus_client.values:ValueClass": "a server without room for its counts ends at its first request",
    "prometheus_client.values:MutexValue": "the same",
}
USERS = {
    "regrow.apps.serving.metrics",
    "regrow.infra.mlflow.bulk",
    "regrow.show.exports.optuna_database",
}
NAMES = {**RAY, **RLLIB, **TUNE, **PREFECT, **MLFLOW, **OPTUNA, **PYTHON, **PROMETHEUS}


def names(key: str) -> tuple[str, list[str]]:
    """The module and the attributes of a line of the table."""
    module, _, attributes = key.partition("(")[0].partition(":")
    return module, attributes.split(".")


def missing(key: str) -> str:
    """What of a line of the table the installed library does not have; empty if all is there."""
    module, attributes = names(key)
    found: Any = importlib.import_module(module)
    for attribute in attributes:
        if hasattr(found, "__path__") and not hasattr(found, attribute):
            found = importlib.import_module(f"{module}.{attribute}")
            continue
        if not hasattr(found, attribute):
            return (
                ""
                if attributes[-1] == attribute and is_set(found, attribute)
                else f"{attribute} is gone"
            )
        found = getattr(found, attribute)
    wanted = options(key)
    gone = wanted - inspect.signature(found).parameters.keys() if wanted else set()
    if gone:  # else they are read from its **kwargs
        gone = {one for one in gone if f'"{one}"' not in inspect.getsource(found)}
    return f"it takes no {', '.join(sorted(gone))}" if gone else ""


def options(key: str) -> set[str]:
    """The parameters of a line of the table."""
    return {one.strip() for one in key.partition("(")[2].rstrip(")").split(",")} - {""}


def is_set(found: Any, attribute: str) -> bool:
    """Whether objects of a class, or of that of an object, have the attribute or give it to
    themselves.
    """
    if inspect.ismodule(found):
        return False
    kind = found if isinstance(found, type) else type(found)
    return hasattr(kind, attribute) or any(
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Store)
        for base in kind.__mro__[:-1]
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base))))
    )


@pytest.mark.filterwarnings("ignore")  # of the libraries among themselves, as they are imported
@pytest.mark.parametrize("key", NAMES)
def test_it_is_there_and_takes_what_it_is_given(key: str) -> None:
    if key in RLLIB:
        pytest.importorskip("gymnasium", reason="regrow[rl] is not installed")
        pytest.importorskip("torch")
    assert missing(key) == "", NAMES[key]


@pytest.mark.skipif(sys.platform != "linux", reason="compilers name functions otherwise elsewhere")
def test_the_functions_of_rays_compiled_part_are_there() -> None:
    """Else SIGTERM while Ray starts or ends takes the driver with it."""
    text = Path(private.__file__).read_text()
    functions = re.findall(r'_call\("(\w+)"', text)
    library = ctypes.CDLL(importlib.import_module("ray._raylet").__file__)
    assert len(functions) == 2
    assert [name for name in functions if not hasattr(library, name)] == []


def test_a_name_that_is_gone_is_found() -> None:
    assert missing("ray._private.utils:nothing") == "nothing is gone"
    assert missing("optuna.samplers:TPESampler._nothing") == "_nothing is gone"
    assert missing("prefect.server.api.server:create_app(nothing)") == "it takes no nothing"


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The modules that use private names, and those that use what these hand out."""
    return {
        module: source for module, source in rooms.sources().items() if module in PRIVATE | USERS
    }


def test_each_private_name_that_is_used_is_in_the_table(sources: dict[str, str]) -> None:
    known = {f"{module}:{attributes[0]}" for module, attributes in map(names, NAMES)}
    known |= {module for module, _ in map(names, NAMES)}
    known |= {f".{attribute}" for _, attributes in map(names, NAMES) for attribute in attributes}
    known |= {f".{option}" for key in NAMES for option in options(key)}
    found = {name for source in sources.values() for _, name in used(ast.parse(source))}
    assert found - known == set()


def test_each_name_in_the_table_is_used(sources: dict[str, str]) -> None:
    text = "\n".join(sources.values())
    assert [key for key in NAMES if names(key)[1][-1] not in text] == []


def test_the_number_that_stands_for_a_preemption_is_rays() -> None:
    from regrow.infra.ray.private import PREEMPTION

    protocol: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    assert protocol.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION") == PREEMPTION


def test_the_variable_that_tells_workers_what_to_call_is_rays() -> None:
    """Without it what a trial starts cannot import the trial's code."""
    from regrow.infra.ray.private import SETUP_HOOK

    constants: Any = importlib.import_module("ray._private.ray_constants")
    assert constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR == SETUP_HOOK


def test_the_variables_that_set_mlflows_server_up_are_mlflows() -> None:
    """Without these `regrow ui` shows an empty database, and its artifacts are not found."""
    from regrow.infra.mlflow import private as mlflows

    modules = map(
        importlib.import_module, ("mlflow.server.constants", "mlflow.environment_variables")
    )
    theirs = [getattr(one, "name", one) for module in modules for one in vars(module).values()]
    given = set(re.findall(r'"(_MLFLOW_\w+)"', Path(mlflows.__file__).read_text()))
    assert len(given) == 5
    assert [one for one in given if one not in theirs] == []


def test_the_variable_that_keeps_the_loopback_is_rays() -> None:
    """Without it no driver joins a station's cluster, and `ray.init("auto")` in what a trial starts
    finds nothing at its address.
    """
    from regrow.infra.ray.private import NETWORK, loopback_kept

    constants: Any = importlib.import_module("ray._private.ray_constants")
    services: Any = importlib.import_module("ray._private.services")
    assert constants.ENABLE_RAY_CLUSTERS_ENV_VAR == NETWORK
    with loopback_kept():
        assert services.canonicalize_bootstrap_address("127.0.0.1:6379") == "127.0.0.1:6379"


def test_a_raylet_is_told_which_scripts_to_start() -> None:
    """Without these a dashboard's agent runs, and workers import Ray twice: 2 s of CPU."""
    services: Any = importlib.import_module("ray._private.services")
    said = inspect.getsource(services.start_raylet)
    options = ("session_dir", "node_id", "dashboard_agent_command", "python_worker_command")
    assert [one for one in options if f"--{one}=" not in said] == []
    assert "--minimal" in said
    assert (Path(services.__file__).parent / "workers" / "setup_worker.py").is_file()


def test_rays_other_commands_are_not_imported_for_a_node() -> None:
    """Otherwise each agent takes 1 s of CPU and 100 MB more."""
    program = (
        "import sys; from contextlib import suppress\n"
        "from regrow.infra.ray.private import start_node\n"
        "with suppress(SystemExit): start_node(['--help'])\n"
        "print({'pandas', 'fastapi', 'aiohttp', 'ray.serve'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--node-ip-address" in said, "it is Ray's command"
    assert said.splitlines()[-1] == "set()"


def test_the_settings_of_a_node_are_rays() -> None:
    """Without one of them each node has a new spare every 10 s, or starts later."""
    from regrow.infra.ray.own_node import SETTINGS

    names = [name.removeprefix("RAY_") for name in SETTINGS]
    compiled = [name for name in names if name.islower()]
    assert "idle_worker_killing_time_threshold_ms" in compiled
    services: Any = importlib.import_module("ray._private.services")
    raylet = Path(services.RAYLET_EXECUTABLE).read_bytes()
    assert [name for name in compiled if name.encode() not in raylet] == []


def test_the_engine_talks_in_the_module_that_is_filtered() -> None:
    """Without it each task run would send the server a log line of its own, and print its
    retries.
    """
    engine: Any = importlib.import_module("prefect.task_engine").AsyncTaskRunEngine
    assert engine.log_finished_message.__code__.co_filename.endswith("task_engine.py")
