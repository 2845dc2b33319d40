"""One session on a joined cluster, from its coordinator's start to the record of its log."""

from __future__ import annotations

import os
import platform
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

import ray
from prefect import get_client
from prefect.context import FlowRunContext

from regrow.flows import gpus
from regrow.flows.attempts import Attempts
from regrow.flows.closing import record_ending
from regrow.flows.coordinator.actor import RayCoordinatorClient, lost, start_coordinator
from regrow.flows.coordinator.claim import SessionOpening
from regrow.flows.coordinator.relay import relays
from regrow.flows.flow_run import this_flow_run
from regrow.flows.interrupts import Interrupts
from regrow.flows.loop import Loop, page_requests, stop_requests, trial_orders
from regrow.flows.members import members
from regrow.flows.recording.publisher import publishing
from regrow.flows.recording.recorder import start_recorder
from regrow.flows.session import Session
from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.mlflow.in_trial import RayRecords
from regrow.infra.prefect import notifications
from regrow.infra.prefect.deployments import schedule_of
from regrow.infra.prefect.run_logs import RunLogs
from regrow.infra.prefect.task_runner import OffloadTaskRunner
from regrow.infra.ray import cluster, scaling
from regrow.infra.ray.executor import RayExecutor, RayShared
from regrow.infra.ray.joining import code, environment, shortage, slots
from regrow.infra.ray.nodes import Nodes
from regrow.infra.ray.warm_pool import spares
from regrow.infra.state import snapshot
from regrow.infra.state.environment import collected
from regrow.infra.state.presence import present
from regrow.infra.state.sources import code_changed
from regrow.search.events import Created, Opened, Status
from regrow.search.history import History
from regrow.tasks.ports.messages import Job
from regrow.tasks.ports.store import Unavailable


def conduct(
    session: Session, ray_cluster: cluster.RayCluster, interrupts: Interrupts
) -> tuple[Status, History]:
    """Run one session from its claim to the record of its log; return its end and history."""
    context, flow_run, places = FlowRunContext.get(), this_flow_run(), session.places
    runner = None if context is None else context.task_runner
    if not isinstance(runner, OffloadTaskRunner):
        raise TypeError("the flow `run` runs on an OffloadTaskRunner")
    gpus.decide(session, ray_cluster)
    spec, store = session.prepared.spec, session.prepared.store
    coordinator, address = start_coordinator(
        store,
        _opening(session, ray_cluster, str(flow_run.id)),
        name=f"regrow-coordinator-{flow_run.id}-{flow_run.run_count}",
    )
    experiment_id: str = cluster.get(coordinator.identity.remote())
    recorder = start_recorder(address, places, spec.name)
    nodes = Nodes()
    with ExitStack() as during:
        client = during.enter_context(get_client(sync_client=True))
        if session.watch:
            during.enter_context(session.watch(coordinator))
        during.enter_context(nodes.watched())
        # Before the first event is published, which is that the session has started.
        for line in notifications.ensure(client, spec, schedule_of(flow_run), places):
            session.say(line)
        during.enter_context(publishing(coordinator, client, flow_run.id))
        logs = RunLogs(client, flow_run.id)
        attempts = Attempts(
            runner=runner,
            executor=RayExecutor(_shared(session, ray_cluster, coordinator, recorder), nodes),
            lost=partial(lost, coordinator),
            flow_run_id=flow_run.id,
            experiment_id=experiment_id,
            logs=logs,
        )
        with logs.sent(lambda: cluster.get(coordinator.lines.remote())), attempts:
            with (
                present(store),  # in a folder, for colleagues, who do not see this user's locks
                stop_requests(
                    store, interrupts, near=not places.shared, by_agent=bool(session.agent)
                ),
                trial_orders(store, coordinator, near=not places.shared),
                page_requests(client, flow_run.id, interrupts),
                spares(nodes, spec.resources.widths[1]),
                relays(coordinator) as speakers,
                members(nodes, store, by_agent=bool(session.agent)) as there,
            ):
                status = Loop(
                    coordinator,
                    attempts,
                    nodes,
                    speakers,
                    interrupts,
                    spec,
                    session.say,
                    store,
                    there,
                ).run()
            history = record_ending(
                session, flow_run.id, coordinator, recorder, client, attempts, interrupts
            )
    ray.kill(recorder)
    ray.kill(coordinator)
    return status, history


def _save_code(session: Session) -> dict[str, str]:
    """Keep the code in the state. Returns what the log records of that; nothing if the store is
    out of reach, which the session finds out by itself.
    """
    prepared = session.prepared
    assert prepared.folder is not None
    before = prepared.log.snapshot
    with suppress(Unavailable):
        key, left_out = snapshot.save(prepared.store, prepared.folder, before)
        if before is None:
            snapshot.noted(left_out, session.say)
        return {} if key is None else {"snapshot": key}
    return {}


def _opening(session: Session, ray_cluster: cluster.RayCluster, flow_run: str) -> SessionOpening:
    """Return how the coordinator opens the log. Announces what the user should know of the code and
    the cluster. Raises SpecError if there is no room for a trial.
    """
    prepared = session.prepared
    spec, described = prepared.spec, prepared.log.described
    recorded = collected(prepared.folder, spec.program)
    if described is not None and (line := code_changed(described, recorded)):
        session.say(line)
    if prepared.folder is not None:
        recorded = {**recorded, **_save_code(session)}
    fixed = scaling.most(spec) is not None
    if (fixed or session.agent) and (line := shortage(spec, ray_cluster)) is not None:
        session.say(line)
    # a decision may depend on these
    libraries = ("regrow", "optuna", "numpy", "ray", "prefect", "mlflow")
    versions = {"python": platform.python_version(), **{name: version(name) for name in libraries}}
    return SessionOpening(
        created=Created(
            t=0.0,
            id=flow_run,
            spec=spec.record(),
            known=prepared.known,
            auto=prepared.auto,
            learnt=prepared.learnt,
        ),
        opened=Opened(
            t=0.0,
            by="driver",
            driver="",
            slots=slots(spec, ray_cluster, by_agent=bool(session.agent)),
            trials=prepared.trials or 0,
            flow_run=flow_run,
            code=prepared.code[1] if prepared.code else None,
            versions=versions,
            widest=spec.resources.shape.widest(ray_cluster.nodes()),
            environment=recorded,
            retry_failed=session.retry_failed,
            agent=session.agent,
            hold=session.hold,
        ),
        fixed=fixed,
        least=scaling.least(spec),
        on_demand=scaling.on_demand(spec),
    )


def _shared(
    session: Session, ray_cluster: cluster.RayCluster, coordinator: Any, recorder: Any
) -> RayShared:
    """Return what all workers of the session get; the last two arguments are actor handles."""
    prepared, places, typed = session.prepared, session.places, session.typed
    spec = prepared.spec
    taken_over = CallerContext(variables={})
    # The workers of a cluster that was started for this session inherit the shell's environment.
    if typed is not None and not ray_cluster.local:
        variables = {**typed.variables, **environment(spec), **code(spec)}
        taken_over = CallerContext(folder=typed.folder, variables=variables)
    folder = None if os.environ.get("RAY_ADDRESS") else prepared.folder
    return RayShared(
        job=Job.of(spec, folder=folder, code=prepared.code),
        coordinator=RayCoordinatorClient(coordinator),
        store=prepared.store,
        records=RayRecords(recorder, places.mlflow_uri, places.mlflow_artifacts),
        typed=taken_over,
    )
