"""The Kubernetes objects of agents, made of the templates in `objects.yaml`. Pure functions with
reproducible results.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from regrow.infra.clusters.description import Kubernetes, Pods
from regrow.infra.clusters.template import filled, parts

Json = dict[str, Any]

CLUSTER = "regrow.io/cluster"
"""Label of all objects of a cluster, with its name."""
PROJECT_FOLDER = "/project"
TRIES = 100
"""How many pods of a Job may fail before it does."""
GRACE_SECONDS = 120
"""Seconds between a pod's notice and its SIGKILL. No cloud gives spot machines more."""
KEPT_SECONDS = 86_400
"""Seconds for which Kubernetes keeps a Job that has ended, and with it what its pods printed."""
SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Labels of nodes that may be taken away: of Karpenter, EKS, GKE and AKS."""
_MOST_SECONDS = 2**31 - 1


class _PlainDumper(yaml.SafeDumper):
    """YAML dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: no aliases."""
        return True


def agents(cluster: Kubernetes, words: Sequence[str], *, user: str) -> list[Json]:
    """Return a Job of agents for each group, where each pod runs the command in
    the project's folder, and they elect a leader. `words`: arguments of `regrow`, such as join.
    """
    jobs = [
        _made(
            "Agents",
            cluster,
            name=f"{cluster.name}-{group.name}",
            user=user,
            most=group.most,
            template=_agent(cluster, group, words),
        )
        for group in cluster.workers
    ]
    for job in jobs:
        job["metadata"]["labels"][CLUSTER] = cluster.name
    return jobs


def agent_command(job: Mapping[str, Any]) -> list[str]:
    """Return the command of a Job's pods; empty for a Job that is not of agents."""
    containers = job.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
    return next((one["command"] for one in containers if one["name"] == "agent"), [])


def network_policy(cluster: Kubernetes) -> Json:
    """Return the policy: only its own pods reach the cluster's."""
    return _beside("NetworkPolicy", cluster, "network")


def secret(cluster: Kubernetes, part: str, data: Mapping[str, bytes]) -> Json:
    """Return the Secret `part`: "env" or "project"."""
    encoded = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
    return _beside("Secret", cluster, part, data=encoded)


def written(objects: Sequence[Json], heading: str = "") -> bytes:
    """Return objects as a file, always the same bytes. `heading`: comment above them."""
    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    text: str = yaml.dump_all(
        objects,
        Dumper=_PlainDumper,
        sort_keys=True,
        width=1000,
        allow_unicode=True,
        explicit_start=True,
    )
    return (comment + text).encode()


def names(cluster: Kubernetes) -> dict[str, str]:
    """Return the names of the objects beside the Jobs."""
    return {part: f"{cluster.name}-{part}" for part in ("env", "project", "network")}


def _python(cluster: Kubernetes) -> str:
    """Return the interpreter in the image that has regrow."""
    return cluster.python or "python"


def _made(part: str, cluster: Kubernetes, **values: Any) -> Json:
    """Return a part of `objects.yaml` with these values and those that all parts share."""
    shared: Json = {
        "name": cluster.name,
        "cluster": cluster.name,
        "namespace": cluster.namespace,
        "image": cluster.image,
        "python": _python(cluster),
        "expires": f"{cluster.expires:g}",
        "expires_seconds": max(1, min(round(cluster.expires), _MOST_SECONDS)),
        "kept_seconds": KEPT_SECONDS,
        "project_folder": PROJECT_FOLDER,
        "grace_seconds": GRACE_SECONDS,
        "tries": TRIES,
    }
    found: Json = filled(
        parts(Path(__file__).with_name("objects.yaml"))[part], {**shared, **values}
    )
    return found


def _beside(kind: str, cluster: Kubernetes, part: str, **values: Any) -> Json:
    """Return an object beside the cluster, which has no annotations."""
    made = _made(kind, cluster, user=None, **{**values, "name": names(cluster)[part]})
    made["metadata"]["labels"][CLUSTER] = cluster.name
    del made["metadata"]["annotations"]
    return made


def _agent(cluster: Kubernetes, group: Pods, words: Sequence[str]) -> Json:
    """Return the template of a group's pods. They leave in order on SIGTERM by themselves."""
    spot = group.market == "spot"
    amounts = {"cpu": _quantity(group.cpu), "memory": str(group.memory)}
    tolerations = [dict(one) for one in group.tolerations]
    if group.gpu:
        amounts["nvidia.com/gpu"] = str(group.gpu)
        tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    sources = [{"secretRef": {"name": secret}} for secret in cluster.secrets]
    if cluster.env:  # added last, as the last source of a variable counts
        sources.append({"secretRef": {"name": names(cluster)["env"]}})
    claims = list(enumerate(sorted(cluster.volumes.items())))
    return _made(
        "pod",
        cluster,
        command=[_python(cluster), "-m", "regrow", *words, *["--spot"] * spot],
        amounts=amounts,
        sources=sources or None,
        mounts=[
            *({"name": f"claim-{n}", "mountPath": path} for n, (path, _) in claims),
            {"name": "project", "mountPath": PROJECT_FOLDER},
            # Ray's object store; what is in it counts as the container's memory.
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - where Ray has it
        ],
        volumes=[
            *(
                {"name": f"claim-{n}", "persistentVolumeClaim": {"claimName": claim}}
                for n, (_, claim) in claims
            ),
            {"name": "project", "emptyDir": {"sizeLimit": "256Mi"}},
            {"name": "packed", "secret": {"secretName": names(cluster)["project"]}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
        selector=dict(group.node_selector) or None,
        affinity=None if spot else _off_spot(),
        tolerations=tolerations or None,
        pull_secrets=[{"name": secret} for secret in cluster.pull_secrets] or None,
        service_account=cluster.service_account,
    )


def _off_spot() -> Json:
    """Return the affinity that keeps a pod off spot nodes; nodes without a label are on-demand."""
    terms = [
        {"key": key, "operator": "NotIn", "values": [value]}
        for key, value in sorted(SPOT_LABELS.items())
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _quantity(cpus: float) -> str:
    return f"{round(cpus * 1000)}m" if cpus != int(cpus) else str(int(cpus))
