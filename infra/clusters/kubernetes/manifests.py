"""The Kubernetes objects of a cluster: RayCluster, RayJob and the objects beside them. Pure
functions with reproducible results.

`up` creates a RayCluster, which takes any number of experiments. `run` creates a RayJob for one
experiment: KubeRay starts a cluster for it, and another one if the head is lost. The command is the
same each time, and resumes from the log.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from regrow.infra.clusters.description import Kubernetes
from regrow.infra.clusters.kubernetes import pods

Json = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """YAML dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: no aliases."""
        return True


FILE_HASH = "regrow.io/file"
"""Annotation with a hash of what a cluster was made from."""
TRIES = 100
"""How many clusters a RayJob may use, one after the other."""
_MOST_SECONDS = 2**31 - 1
_HERE = "regrow.infra.clusters.kubernetes"


def ray_cluster(cluster: Kubernetes, *, user: str, ray: str) -> Json:
    """Return the cluster for `up`. `user`: its owner. `ray`: the version of Ray."""
    spec = _cluster_spec(cluster, ray, idle=True)
    spec["suspend"] = False  # set by its own idle container
    metadata = _metadata(cluster, user)
    metadata["annotations"][FILE_HASH] = digest(spec)
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


def ray_job(
    cluster: Kubernetes,
    words: Sequence[str],
    *,
    user: str,
    ray: str,
    environment: Mapping[str, str] | None = None,
    about: Mapping[str, str] | None = None,
) -> Json:
    """Return the job of one experiment.

    Args:
        cluster: the cluster.
        words: the command, run in the project's folder. It must be repeatable.
        user: owner of the cluster.
        ray: version of Ray.
        environment: variables of the command, without secrets.
        about: metadata for Ray's list of jobs.

    """
    given = [
        word
        for name, value in sorted((environment or {}).items())
        for word in ("--set", f"{name}={value}")
    ]
    asked = (
        pods.python(cluster),
        "-m",
        f"{_HERE}.job",
        "--in",
        pods.PROJECT_FOLDER,
        *given,
        "--",
        *words,
    )
    entrypoint = shlex.join(asked)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(cluster, user),
        "spec": {
            "entrypoint": entrypoint,
            "metadata": dict(about or {}),
            # The submitter is in the head's pod: without a head, KubeRay notices at once that the
            # job has failed, and starts again with a new cluster. With a submitter in its own pod,
            # KubeRay would wait for the old cluster's head to come back.
            "submissionMode": "SidecarMode",
            "backoffLimit": TRIES,
            "suspend": False,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _seconds(cluster.idle),
            "activeDeadlineSeconds": _seconds(cluster.expires),
            "rayClusterSpec": _cluster_spec(cluster, ray, project=True),
        },
    }


def network_policy(cluster: Kubernetes) -> Json:
    """Return the policy: only the cluster's own pods reach its pods, and the operator reaches Ray's
    dashboard, which it asks about the job.
    """
    own = {"podSelector": {"matchLabels": {pods.CLUSTER: cluster.name}}}
    operator = {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": pods.names(cluster)["network"],
            "namespace": cluster.namespace,
            "labels": _labels(cluster),
        },
        "spec": {
            **own,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [own]},
                {"from": [operator], "ports": [{"protocol": "TCP", "port": pods.DASHBOARD_PORT}]},
            ],
        },
    }


def secret(cluster: Kubernetes, part: str, data: Mapping[str, bytes]) -> Json:
    """Return the Secret `part`: "env", "token" or "project"."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": pods.names(cluster)[part],
            "namespace": cluster.namespace,
            "labels": _labels(cluster),
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in sorted(data.items())},
    }


def written(objects: Sequence[Json], heading: str = "") -> bytes:
    """Return objects as a file of several documents, always the same bytes. `heading`: lines of
    comment above them.
    """
    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    text: str = yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=True, width=1000, allow_unicode=True, explicit_start=True
    )
    return (comment + text).encode()


def digest(data: Json) -> str:
    """Return a hash of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _cluster_spec(
    cluster: Kubernetes, ray: str, *, project: bool = False, idle: bool = False
) -> Json:
    return {
        "rayVersion": ray,
        # Not a token made by KubeRay, which would differ for each cluster of a RayJob.
        "authOptions": {"mode": "token", "secretName": pods.names(cluster)["token"]},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": _seconds(cluster.idle),
            "securityContext": pods.confined(),
        },
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},  # no trials on the head
            "labels": {pods.MARKET: "on-demand", pods.INSTANCE: "head"},
            "template": pods.head(cluster, project=project, idle=idle),
        },
        "workerGroupSpecs": [
            {
                "groupName": group.name,
                # Without `replicas`, which the autoscaler sets.
                "minReplicas": group.least,
                "maxReplicas": group.most,
                "priority": len(cluster.workers) - place,  # higher ones first
                "labels": {pods.MARKET: group.market, pods.INSTANCE: group.name},
                "rayStartParams": {"num-cpus": str(max(1, int(group.cpu)))},  # KubeRay rounds up
                "template": pods.worker(cluster, group),
            }
            for place, group in enumerate(cluster.workers)
        ],
    }


def _metadata(cluster: Kubernetes, user: str) -> Json:
    annotations = {
        "regrow.io/user": user,
        "regrow.io/expires-after-seconds": f"{cluster.expires:g}",
    }
    return {
        "name": cluster.name,
        "namespace": cluster.namespace,
        "labels": _labels(cluster),
        "annotations": annotations,
    }


def _labels(cluster: Kubernetes) -> dict[str, str]:
    return {pods.CLUSTER: cluster.name, "app.kubernetes.io/managed-by": "regrow"}


def _seconds(span: float) -> int:
    return max(1, min(round(span), _MOST_SECONDS))
