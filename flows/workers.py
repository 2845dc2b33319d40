"""What the workers of a session get: the job, the shell's environment, and whom they speak to."""

from __future__ import annotations

import os
from typing import Any

from regrow.flows.coordinator.actor import RayCoordinatorClient
from regrow.flows.session import Session
from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.mlflow.in_trial import RayRecords
from regrow.infra.ray.cluster import Cluster
from regrow.infra.ray.executor import RayExecutor, Shared
from regrow.infra.ray.joining import code, environment
from regrow.infra.ray.nodes import Nodes
from regrow.tasks.ports.messages import Job


def executor(
    session: Session, ray_cluster: Cluster, nodes: Nodes, coordinator: Any, recorder: Any
) -> RayExecutor:
    """Return what runs the session's attempts. `coordinator` and `recorder`: handles of the
    actors.
    """
    prepared, places = session.prepared, session.places
    folder = None if os.environ.get("RAY_ADDRESS") else prepared.folder
    shared = Shared(
        job=Job.of(prepared.spec, folder=folder, code=prepared.code),
        coordinator=RayCoordinatorClient(coordinator),
        store=prepared.store,
        records=RayRecords(recorder, places.mlflow_uri, places.mlflow_artifacts),
        typed=_taken_over(session, ray_cluster),
    )
    return RayExecutor(shared, nodes)


def _taken_over(session: Session, ray_cluster: Cluster) -> CallerContext:
    """Return the shell's environment for the workers, empty if the cluster was started for this
    session: its workers inherit it.
    """
    typed, spec = session.typed, session.prepared.spec
    if typed is None or ray_cluster.local:
        return CallerContext(variables={})
    return CallerContext(
        folder=typed.folder, variables={**typed.variables, **environment(spec), **code(spec)}
    )
