"""One session on a joined cluster: the coordinator and the recorder are started, the loop runs, and
the log is closed and recorded.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import ray
from prefect import get_client
from prefect.context import FlowRunContext

from regrow.flows.attempts import Attempts
from regrow.flows.closing import finished
from regrow.flows.coordinator.actor import lost, start_coordinator
from regrow.flows.coordinator.relay import relays
from regrow.flows.interrupts import Interrupts
from regrow.flows.loop import Loop
from regrow.flows.opening import opening
from regrow.flows.recording.publisher import publishing
from regrow.flows.recording.recorder import start_recorder
from regrow.flows.session import Session
from regrow.flows.stopping import page_requests, stop_requests
from regrow.flows.workers import executor
from regrow.infra.prefect import notifications
from regrow.infra.prefect.deployments import schedule_of
from regrow.infra.prefect.run_logs import RunLogs
from regrow.infra.prefect.task_runner import OffloadTaskRunner
from regrow.infra.ray import cluster
from regrow.infra.ray.nodes import Nodes
from regrow.infra.ray.warm_pool import spares
from regrow.infra.state.presence import present
from regrow.search.events import Status
from regrow.search.history import History


def conduct(
    session: Session, ray_cluster: cluster.Cluster, asked: Interrupts
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
    flow_run, places = context.flow_run, session.places
    spec, store = session.prepared.spec, session.prepared.store
    coordinator, address = start_coordinator(
        store,
        opening(session, ray_cluster, str(flow_run.id)),
        name=f"regrow-coordinator-{flow_run.id}-{flow_run.run_count}",
    )
    experiment_id: str = cluster.get(coordinator.identity.remote())
    recorder = start_recorder(address, places, spec.name)
    nodes = Nodes()
    with (
        get_client(sync_client=True) as client,
        session.watch(coordinator) if session.watch else nullcontext(),
        nodes.watched(),
        publishing(coordinator, client, flow_run.id),
    ):
        for line in notifications.ensure(client, spec, schedule_of(flow_run), places):
            session.say(line)
        logs = RunLogs(client, flow_run.id)
        attempts = Attempts(
            runner=context.task_runner,
            executor=executor(session, ray_cluster, nodes, coordinator, recorder),
            lost=partial(lost, coordinator),
            flow_run_id=flow_run.id,
            experiment_id=experiment_id,
            logs=logs,
        )
        signs = present(store) if places.shared else nullcontext()
        with logs.sent(lambda: cluster.get(coordinator.lines.remote())), attempts:
            with (
                signs,
                stop_requests(store, asked, near=not places.shared),
                page_requests(client, flow_run.id, asked),
                spares(nodes, spec.resources.widths[1]),
                relays(coordinator) as speakers,
            ):
                status = Loop(
                    coordinator, attempts, nodes, speakers, asked, spec, announce=session.say
                ).run()
            history = finished(session, flow_run.id, coordinator, recorder, client, attempts, asked)
    ray.kill(recorder)
    ray.kill(coordinator)
    return status, history
