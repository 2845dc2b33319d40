"""The beginning of a session on a cluster: with what the coordinator opens the experiment's log."""

from __future__ import annotations

import platform
from importlib.metadata import version

from regrow.flows.coordinator.claim import Opening
from regrow.flows.session import Session
from regrow.infra.ray.cluster import Cluster
from regrow.infra.ray.joining import shortage, slots
from regrow.infra.ray.scaling import most
from regrow.infra.state.environment import collected
from regrow.infra.state.sources import code_changed


def opening(session: Session, ray_cluster: Cluster, flow_run: str) -> Opening:
    """Return how the flow run opens the log. Announces what the user should know of the code and
    the cluster. Raises SpecError if there is no room for a trial.
    """
    prepared = session.prepared
    spec, told = prepared.spec, prepared.log.told
    environment = collected(prepared.folder, spec.program)
    if told is not None and (line := code_changed(told, environment)):
        session.say(line)
    fixed = most(spec) is not None
    if fixed and (line := shortage(spec, ray_cluster)) is not None:
        session.say(line)
    return Opening(
        slots=slots(spec, ray_cluster),
        trials=prepared.trials,
        flow_run=flow_run,
        code=prepared.code[1] if prepared.code else None,
        spec=spec.record(),
        id=flow_run,
        versions=_versions(),
        environment=environment,
        known=prepared.known,
        auto=prepared.auto,
        learnt=prepared.learnt,
        retry_failed=session.retry_failed,
        widest=spec.resources.shape.widest(ray_cluster.nodes()),
        fixed=fixed,
    )


def _versions() -> dict[str, str]:
    """Return the versions that a decision may depend on."""
    names = ("regrow", "optuna", "numpy", "ray", "prefect", "mlflow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
