"""The flow of an experiment: gets instructions from the coordinator, submits attempts, watches
them, and closes.

Starting, resuming and retrying are this same flow on a shorter or longer log.
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

from regrow.flows import crash_report
from regrow.flows.attempts import Attempts
from regrow.flows.coordinator.actor import RayCoordinatorClient, lost, start_coordinator
from regrow.flows.coordinator.claim import Opening
from regrow.flows.coordinator.relay import relays
from regrow.flows.ending import cut_short
from regrow.flows.flow_run import TakenOver, over_a_pause
from regrow.flows.interrupts import Interrupts, interrupts
from regrow.flows.loop import Loop, Overtaken
from regrow.flows.recording.artifacts import PICTURES, publish
from regrow.flows.recording.publisher import publishing
from regrow.flows.recording.recorder import start_recorder
from regrow.flows.recurring import resolved_here
from regrow.flows.settling import settled
from regrow.flows.stopping import page_requests, stop_requests
from regrow.infra.log.reading import replay
from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.mlflow.in_trial import RayRecords
from regrow.infra.prefect import notifications
from regrow.infra.prefect.deployments import schedule_of
from regrow.infra.prefect.run_logs import RunLogs
from regrow.infra.prefect.server import answers
from regrow.infra.prefect.task_runner import OffloadTaskRunner
from regrow.infra.ray import cluster
from regrow.infra.ray.executor import RayExecutor, Shared
from regrow.infra.ray.joining import code, environment, join, shortage, slots
from regrow.infra.ray.nodes import Nodes
from regrow.infra.ray.scaling import most
from regrow.infra.ray.warm_pool import spares
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
from regrow.tasks.checkpoint.retry import retry_while_unavailable
from regrow.tasks.errors import UserError
from regrow.tasks.ports.messages import Job
from regrow.tasks.ports.store import StoreError

LATE_SECONDS = 1.0
"""Seconds that this process waits, after the loss of its cluster, for the signal that may have
caused it.
"""
HEAD_SECONDS = 600.0
"""Seconds to wait for the user's cluster to answer again after it was lost."""
STORE_SECONDS = 600.0
"""Seconds that the end of a session waits for an unreachable state store."""
PREFECT_SECONDS = 30.0
"""Seconds that the end of a session waits for an unreachable Prefect server."""
PICTURES_SECONDS = 5.0
"""Seconds that the end of a session waits for the figures shown in Prefect."""
QUIET_SECONDS = 15.0
"""Seconds that the end of a session waits for the MLflow recorder without a message: a report takes
that long on a busy machine.
"""
DRAIN_SECONDS = 30.0
"""Seconds of further waiting, after a message."""

Watch = Callable[[Any], AbstractContextManager[object]]
WATCH: ContextVar[Watch | None] = ContextVar("WATCH", default=None)
"""Called with the coordinator's handle; returns a context that shows the experiment while it
runs.
"""
ANNOUNCE: ContextVar[Callable[[str], None]] = ContextVar("ANNOUNCE", default=lambda _: None)
"""Called with lines that the user should read."""
TYPED: ContextVar[CallerContext | None] = ContextVar("TYPED", default=None)
"""Directory and environment of the shell whose command this process carries out; None for this
process.
"""
_GOES_ON: ContextVar[UUID | None] = ContextVar("_GOES_ON", default=None)
"""ID of the flow run that is about to be retried on another cluster."""


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
    """Run an experiment, or continue it, until nothing is left to do.

    Prefect shows what follows in the forms of its page. Raises UserError or SpecError for what
    cannot be run.

    Args:
        name: The experiment's name, before that of the specification.
        spec: The specification, or the path of its YAML file. None continues the experiment `name`.
        state: Where experiments are kept, a folder or s3://...; None: as for `regrow run`.
        trials: The total number of trials, for this run. None: as in the specification.
        code: For runs from a notebook: where the trainable is kept.
        retry_failed: Trials that have failed by now are tried again, from their last checkpoints.
        when: For a run of a schedule: how its runs follow one another, as the key of that name in a
            specification. Each run is a new experiment, named after the time, or the same one with
            more trials.
        event: What started the run; `trial.event` of its trials.

    """
    if get_current_settings().api.url is None:
        raise UserError("PREFECT_API_URL is not set; `regrow run` starts a server by itself")
    places = Places.at(state).writable()
    this = resolved_here(places, name, spec, trials, when, event)
    if this.when is not None and this.when.cluster is not None:
        raise UserError(
            f"{name}: `when.cluster` takes a station, which `regrow up` starts; this is a worker of"
            " Prefect's own"
        )
    retry_failed = retry_failed and not _goes_on()
    prepared = prepare(
        places, this.name, this.spec, trials=this.trials, code=code, retry_failed=retry_failed
    )
    chosen = [prepared.choice.told()] if prepared.choice is not None and prepared.auto else []
    learns = [f"learns from {line}" for line in prepared.advisers]
    for line in (*this.lines, *prepared.changes, *chosen, *learns):
        _announce(line)
    ended = _driven(prepared, this.name, retry_failed=retry_failed)
    if not ended.is_cancelled():
        this.pruned(places, _announce)
    return ended


def _driven(prepared: Prepared, name: str, *, retry_failed: bool) -> State[None]:
    """Run the experiment to the end of its session."""
    with driving(prepared.places, name), interrupts() as asked:
        asked.handle_signals()
        if asked.begun is None:  # else an ending began since the previous cluster was lost
            with join(prepared.spec, _announce) as ray_cluster:
                try:
                    with crash_report.prepare(prepared.places, name):
                        ended = _session(prepared, ray_cluster, asked, retry_failed=retry_failed)
                    return over_a_pause(_state(*ended), ended[0])
                except Overtaken as error:
                    raise TakenOver(str(error)) from None
                except Exception as error:
                    if cluster.lost() is None and not isinstance(error, cluster.ClusterLost):
                        raise
                    cluster.disconnect()
                    # If all processes are signalled (systemd, slurm), the cluster may get the
                    # signal before this process does.
                    if not asked.due(LATE_SECONDS):
                        _await_another_cluster(error, asked)
                        raise
        crash_report.hand_to_guard(prepared.places, name)
        return _state(*cut_short(prepared, asked))


def _goes_on() -> bool:
    """Return whether this run continues an earlier one on another cluster: its request to retry
    failed trials is then in the log already.
    """
    context, before = FlowRunContext.get(), _GOES_ON.get()
    _GOES_ON.set(None)
    return (
        before is not None
        and context is not None
        and context.flow_run is not None
        and context.flow_run.id == before
    )


def _announce(line: str) -> None:
    get_run_logger().warning(line)
    ANNOUNCE.get()(line)


def _await_another_cluster(error: Exception, asked: Interrupts) -> None:
    """Let Prefect retry this flow run on the next cluster."""
    if os.environ.get("RAY_ADDRESS"):
        _announce(
            f"{error}; waiting up to {HEAD_SECONDS / 60:.0f} minutes for a cluster at RAY_ADDRESS"
        )
        if (
            not cluster.await_head(HEAD_SECONDS, lambda: asked.begun is not None)
            and asked.begun is None
        ):
            raise UserError(
                "no Ray cluster came back at RAY_ADDRESS; start one, then `regrow resume` goes on"
            ) from error
    if asked.begun is None:
        _announce(f"{error}; the experiment goes on from its log")
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    with get_client(sync_client=True) as client:
        # Retries are granted here one by one: `@flow(retries=)` would also retry a user's mistake,
        # and would be used up after some resumptions, which count as retries.
        count = client.read_flow_run(context.flow_run.id).run_count
        client.update_flow_run(
            context.flow_run.id, empirical_policy=FlowRunPolicy(retries=count, retry_delay=0)
        )
    _GOES_ON.set(context.flow_run.id)


def _session(
    prepared: Prepared, ray_cluster: cluster.Cluster, asked: Interrupts, *, retry_failed: bool
) -> tuple[Status, History]:
    """Run one session, from claiming the log until it is closed and recorded; return how it ended,
    and the whole history.
    """
    context = FlowRunContext.get()
    if (
        context is None
        or context.flow_run is None
        or not isinstance(context.task_runner, OffloadTaskRunner)
    ):
        raise RuntimeError("the flow `run` runs on an OffloadTaskRunner")
    spec, places, store = prepared.spec, prepared.places, prepared.store
    environment = collected(prepared.folder, spec.program)
    if prepared.log.told is not None and (line := code_changed(prepared.log.told, environment)):
        _announce(line)
    if (line := shortage(spec, ray_cluster)) is not None and most(spec) is not None:
        _announce(line)
    opening = Opening(
        slots=slots(spec, ray_cluster),
        trials=prepared.trials,
        flow_run=str(context.flow_run.id),
        code=prepared.code[1] if prepared.code else None,
        spec=prepared.spec.model_dump(mode="json"),
        id=str(context.flow_run.id),
        versions=_versions(),
        environment=environment,
        known=prepared.known,
        auto=prepared.auto,
        learnt=prepared.learnt,
        retry_failed=retry_failed,
        widest=spec.resources.shape.widest(ray_cluster.nodes()),
        fixed=most(spec) is not None,
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
        job=job,
        coordinator=RayCoordinatorClient(coordinator),
        store=store,
        records=records,
        typed=_taken_over(spec, ray_cluster),
    )
    with (
        get_client(sync_client=True) as client,
        watch(coordinator) if watch else nullcontext(),
        nodes.watched(),
        publishing(coordinator, client, context.flow_run.id),
    ):
        for line in notifications.ensure(client, spec, schedule_of(context.flow_run), places):
            _announce(line)
        logs = RunLogs(client, context.flow_run.id)
        attempts = Attempts(
            runner=context.task_runner,
            executor=RayExecutor(shared, nodes),
            lost=partial(lost, coordinator),
            flow_run_id=context.flow_run.id,
            experiment_id=experiment_id,
            logs=logs,
        )
        signs = present(store) if places.shared else nullcontext()
        with logs.sent(lambda: cluster.get(coordinator.lines.remote())), attempts:
            with (
                signs,
                stop_requests(store, asked, near=not places.shared),
                page_requests(client, context.flow_run.id, asked),
                spares(nodes, spec.resources.widths[1]),
                relays(coordinator) as speakers,
            ):
                status = Loop(
                    coordinator, attempts, nodes, speakers, asked, spec, announce=_announce
                ).run()
            history = _finished(
                prepared, context.flow_run.id, coordinator, recorder, client, attempts, asked
            )
    ray.kill(recorder)
    ray.kill(coordinator)
    return status, history


def _taken_over(spec: Spec, ray_cluster: cluster.Cluster) -> CallerContext:
    """Return the shell's environment for the workers, empty if the cluster was started for this
    session: its workers inherit it.
    """
    typed = TYPED.get()
    if typed is None or ray_cluster.local:
        return CallerContext(variables={})
    return CallerContext(
        folder=typed.folder, variables={**typed.variables, **environment(spec), **code(spec)}
    )


def _finished(
    prepared: Prepared,
    flow_run_id: UUID,
    coordinator: Any,
    recorder: Any,
    client: SyncPrefectClient,
    attempts: Attempts,
    asked: Interrupts,
) -> History:
    """Record the closed log everywhere and return its history. Failures are announced."""
    spec, places = prepared.spec, prepared.places
    last = cluster.get(coordinator.close_readers.remote())
    drawn = recorder.pictures.remote(list(PICTURES))
    trouble = _drained(recorder, last, asked)
    for line in cluster.get(recorder.remarks.remote()):
        _announce(line)
    if trouble:
        crash_report.mark_pending(places, spec.name)
        _announce(
            f"MLflow does not have everything yet: {trouble};"
            f" `{places.command('resume', spec.name)}` catches up."
        )
    history = retry_while_unavailable(
        lambda: replay(prepared.store, spec.name),
        say=_announce,
        seconds=min(STORE_SECONDS, asked.left),
    )
    try:
        collect(prepared.store, history)
    except StoreError as error:
        _announce(
            f"Some checkpoints that nobody needs were not deleted, the next session will: {error}"
        )
    try:
        if answers(str(client.api_url), min(PREFECT_SECONDS, asked.left)):
            settled(client, flow_run_id, attempts, history)
            publish(client, flow_run_id, history, places, _pictures(drawn))
        else:
            _announce(
                "The Prefect server is away and does not have everything; the experiment's log"
                " does."
            )
    except Exception as error:  # noqa: BLE001 - Prefect only shows what the log has: not worth failing at the end
        _announce(
            f"The Prefect server does not have everything; the experiment's log does: {error}"
        )
    return history


def _drained(recorder: Any, last: int, asked: Interrupts) -> str | None:
    """Wait until MLflow has the log up to segment `last`; return what prevents that within the time
    limit, None if nothing.
    """
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
    """Return the recorder's figures; none if drawing fails or takes too long, as they are in the
    report as well.
    """
    try:
        found: dict[str, bytes] = ray.get(drawn, timeout=PICTURES_SECONDS)
    except ray.exceptions.RayError:  # includes a timeout
        return {}
    return found


def _versions() -> dict[str, str]:
    """Return the versions that a decision may depend on."""
    names = ("regrow", "optuna", "numpy", "ray", "prefect", "mlflow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _state(status: Status, history: History) -> State[None]:
    done = sum(len(numbers) for state, numbers in history.by_state.items() if state.final)
    summary = f"{done} of {history.total} trials ended"
    if status == "finished":
        return Completed(message=summary)
    if status == "failed":
        return Failed(message=history.closing.why if history.closing else summary)
    return Cancelled(
        name=status.capitalize(),
        message=f"{summary}; go on with `regrow resume {history.spec.name}`",
    )
