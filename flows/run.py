"""The flow that is an experiment: it asks the coordinator what to do, submits attempts, watches them, and closes.

Starting, resuming and retrying are this same flow over a shorter or longer log.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from importlib.metadata import version
from typing import Any
from uuid import UUID

import ray
from prefect import flow, get_client, get_run_logger
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRunPolicy, State
from prefect.context import FlowRunContext
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Completed, Failed

from regrow.flows.attempts import Attempts
from regrow.flows.ending import cut_short
from regrow.flows.flow_run import TakenOver, over_a_pause
from regrow.flows.interrupts import Interrupts, interrupts
from regrow.flows.loop import Loop, Overtaken
from regrow.flows.recurring import resolved_here
from regrow.flows.settling import settled
from regrow.flows.stopping import page_requests, stop_requests
from regrow.infra.coordinator.actor import RayCoordinatorClient, lost, start_coordinator
from regrow.infra.coordinator.claim import Opening
from regrow.infra.coordinator.relay import relays
from regrow.infra.local import obituary
from regrow.infra.log.reading import replay
from regrow.infra.machine.typed import Typed
from regrow.infra.mlflow.in_trial import RayRecords
from regrow.infra.mlflow.recorder import start_recorder
from regrow.infra.prefect import notifications
from regrow.infra.prefect.artifacts import PICTURES, publish
from regrow.infra.prefect.deployments import schedule_of
from regrow.infra.prefect.publisher import publishing
from regrow.infra.prefect.run_logs import RunLogs
from regrow.infra.prefect.server import answers
from regrow.infra.prefect.task_runner import OffloadTaskRunner
from regrow.infra.ray import cluster
from regrow.infra.ray.executor import RayExecutor, Shared
from regrow.infra.ray.joining import code, environment, join, shortage, slots
from regrow.infra.ray.nodes import Nodes
from regrow.infra.ray.scaling import most
from regrow.infra.ray.warm_pool import spares
from regrow.infra.rllib.trials import RLlibTrials
from regrow.infra.state.collection import collect
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.environment import collected
from regrow.infra.state.experiments import Prepared, prepare
from regrow.infra.state.places import Places
from regrow.infra.state.presence import present
from regrow.infra.state.sources import code_changed
from regrow.search.events import Status
from regrow.search.history import History
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError
from regrow.tasks.messages import Job
from regrow.tasks.patience import patiently
from regrow.tasks.ports import StoreError

LATE_SECONDS = 1.0
"""How long after the loss of its cluster this process waits for the signal that may have caused it."""
HEAD_SECONDS = 600.0
"""How long to wait for a user's own cluster that was lost to answer again."""
STORE_SECONDS = 600.0
"""How long the end of a session waits for a state store that is out of reach."""
PREFECT_SECONDS = 30.0
"""How long the end of a session waits for a Prefect server that is away."""
PICTURES_SECONDS = 5.0
"""How long it waits for the figures that Prefect is shown."""
QUIET_SECONDS = 15.0
"""How long the end of a session waits for MLflow to have everything, without a word: a report takes that on a busy machine."""
DRAIN_SECONDS = 30.0
"""How long it goes on waiting, after saying so."""

Watch = Callable[[Any], AbstractContextManager[object]]
WATCH: ContextVar[Watch | None] = ContextVar("WATCH", default=None)
"""Given the coordinator's handle, shows the experiment to somebody while it runs."""
ANNOUNCE: ContextVar[Callable[[str], None]] = ContextVar("ANNOUNCE", default=lambda _: None)
"""Given a line now and then that the user should read."""
TYPED: ContextVar[Typed | None] = ContextVar("TYPED", default=None)
"""Where the command was typed that this process carries out; None: here."""
_GOES_ON: ContextVar[UUID | None] = ContextVar("_GOES_ON", default=None)
"""The flow run that is about to be retried on another cluster."""


@flow(name="regrow", flow_run_name="{name}", task_runner=OffloadTaskRunner(), persist_result=False)  # type: ignore[arg-type]  # its futures are of one kind
def run(
    name: str,
    spec: dict[str, Any] | str | None = None,
    state: str | None = None,
    trials: int | None = None,
    code: str | None = None,
    retry_failed: bool = False,
    when: dict[str, Any] | None = None,
    event: dict[str, Any] | None = None,
) -> State[None]:
    """Runs an experiment, or goes on with it, until nothing is left to do.

    Prefect shows what follows in the forms of its page. Raises UserError or SpecError for what cannot be run.

    Args:
        name: The experiment's name, before that of the specification.
        spec: The specification, or the path of its YAML file. None goes on with the experiment `name`.
        state: Where experiments are kept, a folder or s3://...; None: as for `regrow run`.
        trials: The total number of trials, for this run. None: as in the specification.
        code: For runs from a notebook: where the trainable is kept.
        retry_failed: Trials that have failed by now are tried again, from their last checkpoints.
        when: For a run of a schedule: how its runs follow one another, as the key of that name in a specification. Each is an
            experiment of its own, named after the time, or the same one with so many trials more.
        event: What started the run; `trial.event` of its trials.

    """
    if get_current_settings().api.url is None:
        raise UserError("PREFECT_API_URL is not set; `regrow run` starts a server by itself")
    places = Places.at(state).writable()
    this = resolved_here(places, name, spec, trials, when, event)
    if this.when is not None and this.when.cluster is not None:
        raise UserError(f"{name}: `when.cluster` takes a station, which `regrow up` starts; this is a worker of Prefect's own")
    retry_failed = retry_failed and not _goes_on()
    prepared = prepare(places, this.name, this.spec, trials=this.trials, code=code, retry_failed=retry_failed)
    chosen = [prepared.choice.told()] if prepared.choice is not None and prepared.auto else []
    learns = [f"learns from {line}" for line in prepared.advisers]
    for line in (*this.lines, *prepared.changes, *chosen, *learns):
        _announce(line)
    ended = _driven(prepared, this.name, retry_failed=retry_failed)
    if not ended.is_cancelled():
        this.pruned(places, _announce)
    return ended


def _driven(prepared: Prepared, name: str, *, retry_failed: bool) -> State[None]:
    """The experiment from here to the end of its session."""
    with driving(prepared.places, name), interrupts() as asked:
        asked.handle_signals()
        if asked.begun is None:  # else it has begun since the cluster before this one was lost
            with join(prepared.spec, _announce) as ray_cluster:
                try:
                    with obituary.prepare(prepared.places, name):
                        ended = _session(prepared, ray_cluster, asked, retry_failed=retry_failed)
                    return over_a_pause(_state(*ended), ended[0])
                except Overtaken as error:
                    raise TakenOver(str(error)) from None
                except Exception as error:
                    if cluster.lost() is None and not isinstance(error, cluster.ClusterLost):
                        raise
                    cluster.disconnect()
                    # Where everybody is told to end (systemd, slurm), the cluster may hear of it before this process does.
                    if not asked.due(LATE_SECONDS):
                        _await_another_cluster(error, asked)
                        raise
        obituary.bequeath(prepared.places, name)
        return _state(*cut_short(prepared, asked))


def _goes_on() -> bool:
    """Whether this is the same wish of the user's as before, only on another cluster: it is in the log already."""
    context, before = FlowRunContext.get(), _GOES_ON.get()
    _GOES_ON.set(None)
    return before is not None and context is not None and context.flow_run is not None and context.flow_run.id == before


def _announce(line: str) -> None:
    get_run_logger().warning(line)
    ANNOUNCE.get()(line)


def _await_another_cluster(error: Exception, asked: Interrupts) -> None:
    """Has this flow run retried, by Prefect, on the next cluster."""
    if os.environ.get("RAY_ADDRESS"):
        _announce(f"{error}; waiting up to {HEAD_SECONDS / 60:.0f} minutes for a cluster at RAY_ADDRESS")
        if not cluster.await_head(HEAD_SECONDS, lambda: asked.begun is not None) and asked.begun is None:
            raise UserError("no Ray cluster came back at RAY_ADDRESS; start one, then `regrow resume` goes on") from error
    if asked.begun is None:
        _announce(f"{error}; the experiment goes on from its log")
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    with get_client(sync_client=True) as client:
        # Granted here and now, one by one: with `@flow(retries=)` a user's mistake would be retried as well, and after
        # some resumptions, which count as retries, nothing would be.
        count = client.read_flow_run(context.flow_run.id).run_count
        client.update_flow_run(context.flow_run.id, empirical_policy=FlowRunPolicy(retries=count, retry_delay=0))
    _GOES_ON.set(context.flow_run.id)


def _session(
    prepared: Prepared, ray_cluster: cluster.Cluster, asked: Interrupts, *, retry_failed: bool
) -> tuple[Status, History]:
    """One session: from the claim of the log until it is closed and recorded; how it ended, and the whole history."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or not isinstance(context.task_runner, OffloadTaskRunner):
        raise RuntimeError("the flow `run` runs on an OffloadTaskRunner")
    spec, places, store = prepared.spec, prepared.places, prepared.store
    surroundings = collected(prepared.folder, spec.program)
    if prepared.log.told is not None and (line := code_changed(prepared.log.told, surroundings)):
        _announce(line)
    if (line := shortage(spec, ray_cluster)) is not None and most(spec) is not None:
        _announce(line)
    opening = Opening(
        slots=slots(spec, ray_cluster), trials=prepared.trials, flow_run=str(context.flow_run.id),
        code=prepared.code[1] if prepared.code else None,
        spec=prepared.spec.model_dump(mode="json"), id=str(context.flow_run.id), versions=_versions(),
        environment=surroundings, known=prepared.known, auto=prepared.auto, learnt=prepared.learnt, retry_failed=retry_failed,
        widest=spec.resources.shape.widest(ray_cluster.nodes()), fixed=most(spec) is not None,
    )
    address = f"regrow-coordinator-{context.flow_run.id}-{context.flow_run.run_count}"
    coordinator, address = start_coordinator(store, opening, name=address)
    experiment_id: str = cluster.get(coordinator.identity.remote())
    recorder = start_recorder(address, places, spec.name)
    records = RayRecords(recorder, places.mlflow_uri, places.mlflow_artifacts)
    job = Job.of(
        spec, folder=None if os.environ.get("RAY_ADDRESS") else prepared.folder, code=prepared.code
    )
    watch, nodes = WATCH.get(), Nodes()
    shared = Shared(
        job=job, coordinator=RayCoordinatorClient(coordinator), store=store, records=records,
        typed=_taken_over(spec, ray_cluster), frameworks=RLlibTrials(),
    )
    with (
        get_client(sync_client=True) as client, watch(coordinator) if watch else nullcontext(), nodes.watched(),
        publishing(coordinator, client, context.flow_run.id),
    ):
        for line in notifications.ensure(client, spec, schedule_of(context.flow_run), places):
            _announce(line)
        logs = RunLogs(client, context.flow_run.id)
        attempts = Attempts(
            runner=context.task_runner, executor=RayExecutor(shared, nodes), lost=partial(lost, coordinator),
            flow_run_id=context.flow_run.id, experiment_id=experiment_id, logs=logs,
        )
        signs = present(store) if places.shared else nullcontext()
        with logs.sent(lambda: cluster.get(coordinator.lines.remote())), attempts:
            with (
                signs, stop_requests(store, asked, near=not places.shared), page_requests(client, context.flow_run.id, asked),
                spares(nodes, spec.resources.widths[1]), relays(coordinator) as speakers,
            ):
                status = Loop(coordinator, attempts, nodes, speakers, asked, spec, announce=_announce).run()
            history = _finished(prepared, context.flow_run.id, coordinator, recorder, client, attempts, asked)
    ray.kill(recorder)
    ray.kill(coordinator)
    return status, history


def _taken_over(spec: Spec, ray_cluster: cluster.Cluster) -> Typed:
    """What workers take over: those of a cluster that was started for this session have it from the start."""
    typed = TYPED.get()
    if typed is None or ray_cluster.local:
        return Typed(variables={})
    return Typed(folder=typed.folder, variables={**typed.variables, **environment(spec), **code(spec)})


def _finished(
    prepared: Prepared, flow_run_id: UUID, coordinator: Any, recorder: Any, client: SyncPrefectClient, attempts: Attempts,
    asked: Interrupts,
) -> History:
    """Has everybody record what the closed log says; returns it. What could not be recorded is announced."""
    spec, places = prepared.spec, prepared.places
    last = cluster.get(coordinator.close_readers.remote())
    drawn = recorder.pictures.remote(list(PICTURES))
    trouble = _drained(recorder, last, asked)
    for line in cluster.get(recorder.remarks.remote()):
        _announce(line)
    if trouble:
        obituary.owe(places, spec.name)
        _announce(f"MLflow does not have everything yet: {trouble}; `{places.command('resume', spec.name)}` catches up.")
    history = patiently(lambda: replay(prepared.store, spec.name), say=_announce, seconds=min(STORE_SECONDS, asked.left))
    try:
        collect(prepared.store, history)
    except StoreError as error:
        _announce(f"Some checkpoints that nobody needs were not deleted, the next session will: {error}")
    try:
        if answers(str(client.api_url), min(PREFECT_SECONDS, asked.left)):
            settled(client, flow_run_id, attempts, history)
            publish(client, flow_run_id, history, places, _pictures(drawn))
        else:
            _announce("The Prefect server is away and does not have everything; the experiment's log does.")
    except Exception as error:  # noqa: BLE001 - a view of what is in the log: no reason to fail at the very end
        _announce(f"The Prefect server does not have everything; the experiment's log does: {error}")
    return history


def _drained(recorder: Any, last: int, asked: Interrupts) -> str | None:
    """Waits until MLflow has the log up to segment `last`; what is in the way after a while, None if nothing."""
    told, began = False, time.monotonic()
    while True:
        trouble: str | None = cluster.get(recorder.drained.remote(last, min(1.0, asked.left)))
        waited = time.monotonic() - began
        left = min(QUIET_SECONDS + DRAIN_SECONDS - waited, asked.left)
        if trouble is None or left <= 0:
            return trouble
        if not told and waited > QUIET_SECONDS:
            told = True
            _announce(f"Waiting up to {min(DRAIN_SECONDS, asked.left):.0f} s for MLflow: {trouble}")


def _pictures(drawn: Any) -> dict[str, bytes]:
    """What the recorder has drawn, nothing if that takes too long or fails: it is in the report as well."""
    try:
        found: dict[str, bytes] = ray.get(drawn, timeout=PICTURES_SECONDS)
    except ray.exceptions.RayError:  # a timeout is one, too
        return {}
    return found


def _versions() -> dict[str, str]:
    """What a decision's result may depend on."""
    names = ("regrow", "optuna", "numpy", "ray", "prefect", "mlflow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _state(status: Status, history: History) -> State[None]:
    done = sum(len(numbers) for state, numbers in history.by_state.items() if state.final)
    summary = f"{done} of {history.total} trials ended"
    if status == "finished":
        return Completed(message=summary)
    if status == "failed":
        return Failed(message=history.closing.why if history.closing else summary)
    return Cancelled(name=status.capitalize(), message=f"{summary}; go on with `regrow resume {history.spec.name}`")
