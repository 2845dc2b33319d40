"""Selection of the engine that starts a kind of cluster."""

from __future__ import annotations

from regrow.infra.clusters.clouds.engine import AwsEngine, RayEngine
from regrow.infra.clusters.description import Aws, Azure, Cluster, Gcp, Kubernetes, Ssh
from regrow.infra.clusters.kubernetes.engine import KubernetesEngine
from regrow.infra.clusters.provider import Provider
from regrow.infra.clusters.ssh import SshEngine
from regrow.tasks.errors import UserError


def engine(cluster: Cluster) -> Provider:
    """Return the engine of a cluster. Raises UserError for a kind that has none."""
    match cluster:
        case Ssh():
            return SshEngine(cluster)
        case Aws():
            return AwsEngine(cluster)
        case Gcp() | Azure():
            return RayEngine(cluster)
        case Kubernetes():
            return KubernetesEngine(cluster)
    raise UserError(f"on: {cluster.on}: clusters there cannot be brought up yet")
