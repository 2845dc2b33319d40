"""The Kubernetes objects of a cluster: RayCluster, RayJob and the objects beside them, made of the
templates in `objects.yaml`. Pure functions with reproducible results.

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
from pathlib import Path
from typing import Any

import yaml

from regrow.infra.clusters.description import HeadPod, Kubernetes, Pods
from regrow.infra.clusters.provider import DASHBOARD_PORT
from regrow.infra.clusters.template import filled, parts

Json = dict[str, Any]

CLUSTER = "regrow.io/cluster"
"""Label of all objects of a cluster, with its name."""
MARKET = "ray.io/market-type"
INSTANCE = "regrow.io/instance-type"
HEAD = "ray-head"
"""The name of the head's container."""
FILE_HASH = "regrow.io/file"
"""Annotation with a hash of what a cluster was made from."""
TOKEN_KEY = "auth_token"  # noqa: S105 - a key's name, not a secret
"""The key in the token's Secret that KubeRay reads."""
PROJECT_FOLDER = "/project"
TRIES = 100
"""How many clusters a RayJob may use, one after the other."""
GRACE_SECONDS = 120
"""Seconds between a pod's notice and its SIGKILL. No cloud gives spot machines more."""
LEAVE_SECONDS = GRACE_SECONDS - 10
"""Seconds for Ray to drain the node; the rest is for what follows."""
LOST_SECONDS = 30
"""Seconds that a head stays bound to a node that does not answer. Kubernetes' default is 300 s, as
long as KubeRay waits for a silent head before it gives the job up without another try.
"""
SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Labels of nodes that may be taken away: of Karpenter, EKS, GKE and AKS."""
_MOST_SECONDS = 2**31 - 1
_FILE = Path(__file__).with_name("objects.yaml")


class _Dumper(yaml.SafeDumper):
    """YAML dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: no aliases."""
        return True


def ray_cluster(cluster: Kubernetes, *, user: str, ray: str) -> Json:
    """Return the cluster for `up`. `user`: its owner. `ray`: the version of Ray."""
    spec = _spec(cluster, ray, idle=_made("idle", cluster), suspend=False)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    return _made("RayCluster", cluster, user=user, digest=digest, spec=spec)


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

    `words`: the command, run in the project's folder; it must be repeatable. `environment`: its
    variables, without secrets. `about`: metadata for Ray's list of jobs.
    """
    given = [
        word
        for name, value in sorted((environment or {}).items())
        for word in ("--set", f"{name}={value}")
    ]
    module = "regrow.infra.clusters.kubernetes.job"
    asked = (python(cluster), "-m", module, "--in", PROJECT_FOLDER, *given, "--", *words)
    return _made(
        "RayJob",
        cluster,
        user=user,
        entrypoint=shlex.join(asked),
        about=dict(about or {}),
        spec=_spec(cluster, ray, project=_made("project", cluster)),
    )


def agents(cluster: Kubernetes, words: Sequence[str], *, user: str) -> list[Json]:
    """Return a Job of agents for each group, which need no operator: each pod runs the command in
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


def _agent(cluster: Kubernetes, group: Pods, words: Sequence[str]) -> Json:
    """Return the template of a group's agents. They leave in order on SIGTERM by themselves."""
    template = _pod(cluster, group, project=_made("project", cluster))
    pod = template["spec"]
    container = pod["containers"][0]
    del container["lifecycle"], container["env"]
    spot = ["--spot"] if group.market == "spot" else []
    container |= {
        "name": "agent",
        "workingDir": PROJECT_FOLDER,
        "command": [python(cluster), "-m", "regrow", *words, *spot],
    }
    # Ray's object store; what is in it counts as the container's memory.
    container.setdefault("volumeMounts", []).append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - where Ray has it
    pod.setdefault("volumes", []).append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    pod["restartPolicy"] = "Never"
    return template


def network_policy(cluster: Kubernetes) -> Json:
    """Return the policy: only its own pods reach the cluster's, and the operator the dashboard."""
    return _beside("NetworkPolicy", cluster, "network")


def secret(cluster: Kubernetes, part: str, data: Mapping[str, bytes]) -> Json:
    """Return the Secret `part`: "env", "token" or "project"."""
    encoded = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
    return _beside("Secret", cluster, part, data=encoded)


def written(objects: Sequence[Json], heading: str = "") -> bytes:
    """Return objects as a file, always the same bytes. `heading`: comment above them."""
    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    text: str = yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=True, width=1000, allow_unicode=True, explicit_start=True
    )
    return (comment + text).encode()


def names(cluster: Kubernetes) -> dict[str, str]:
    """Return the names of the objects beside the cluster itself."""
    return {part: f"{cluster.name}-{part}" for part in ("env", "token", "project", "network")}


def python(cluster: Kubernetes) -> str:
    """Return the interpreter in the image that has regrow."""
    return cluster.python or "python"


def _made(part: str, cluster: Kubernetes, **values: Any) -> Json:
    """Return a part of `objects.yaml` with these values and those that all parts share."""
    shared: Json = {
        "name": cluster.name,
        "cluster": cluster.name,
        "namespace": cluster.namespace,
        "image": cluster.image,
        "python": python(cluster),
        "expires": f"{cluster.expires:g}",
        "expires_seconds": _seconds(cluster.expires),
        "idle_seconds": _seconds(cluster.idle),
        "idle_text": f"{cluster.idle:g}",
        "dashboard": DASHBOARD_PORT,
        "token_key": TOKEN_KEY,
        "project_folder": PROJECT_FOLDER,
        "grace_seconds": GRACE_SECONDS,
        "leave_seconds": str(LEAVE_SECONDS),
        "tries": TRIES,
        "digest": None,
    }
    found: Json = filled(parts(_FILE)[part], {**shared, **values})
    return found


def _beside(kind: str, cluster: Kubernetes, part: str, **values: Any) -> Json:
    """Return an object beside the cluster, which has no annotations."""
    made = _made(kind, cluster, user=None, **{**values, "name": names(cluster)[part]})
    made["metadata"]["labels"][CLUSTER] = cluster.name
    del made["metadata"]["annotations"]
    return made


def _spec(
    cluster: Kubernetes,
    ray: str,
    *,
    suspend: bool | None = None,
    project: Json | None = None,
    idle: Json | None = None,
) -> Json:
    """Return the cluster in a RayCluster or a RayJob. `project`, `idle`: containers of the head."""
    groups = [
        _made(
            "group",
            cluster,
            group=group.name,
            least=group.least,
            most=group.most,
            priority=len(cluster.workers) - place,
            market=group.market,
            cpus=str(max(1, int(group.cpu))),  # KubeRay rounds up
            template=_pod(cluster, group),
        )
        for place, group in enumerate(cluster.workers)
    ]
    head = _pod(cluster, cluster.head, project=project, idle=idle)
    return _made("cluster", cluster, ray=ray, suspend=suspend, head=head, groups=groups)


def _pod(
    cluster: Kubernetes,
    asked: HeadPod | Pods,
    *,
    project: Json | None = None,
    idle: Json | None = None,
) -> Json:
    """Return the template of the head's pod, or of a group's pods."""
    amounts = {"cpu": _quantity(asked.cpu), "memory": str(asked.memory)}
    tolerations = [dict(one) for one in asked.tolerations]
    if isinstance(asked, HeadPod):
        lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_SECONDS}
        tolerations += [
            {"key": f"node.kubernetes.io/{what}", **lost} for what in ("not-ready", "unreachable")
        ]
    elif asked.gpu:
        amounts["nvidia.com/gpu"] = str(asked.gpu)
        tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    sources = [{"secretRef": {"name": secret}} for secret in cluster.secrets]
    if cluster.env:  # added last, as the last source of a variable counts
        sources.append({"secretRef": {"name": names(cluster)["env"]}})
    mounts: list[Json] = []
    volumes: list[Json] = []
    for number, (path, claim) in enumerate(sorted(cluster.volumes.items())):
        mounts.append({"name": f"claim-{number}", "mountPath": path})
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}})
    if project is not None:
        mounts.append({"name": "project", "mountPath": PROJECT_FOLDER})
        packed = {"secretName": names(cluster)["project"]}
        volumes.append({"name": "project", "emptyDir": {"sizeLimit": "256Mi"}})
        volumes.append({"name": "packed", "secret": packed})
    return _made(
        "pod",
        cluster,
        container=HEAD if asked is cluster.head else "ray-worker",
        undisrupted="true" if asked is cluster.head else None,
        api_server=None if asked is cluster.head else False,  # trials do not need it
        amounts=amounts,
        sources=sources or None,
        mounts=mounts or None,
        volumes=volumes or None,
        selector=dict(asked.node_selector) or None,
        affinity=None if isinstance(asked, Pods) and asked.market == "spot" else _off_spot(),
        tolerations=tolerations or None,
        pull_secrets=[{"name": secret} for secret in cluster.pull_secrets] or None,
        service_account=cluster.service_account,
        project=None if project is None else [project],
        idle=idle,
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
    """Return CPUs in Kubernetes' notation."""
    return f"{round(cpus * 1000)}m" if cpus != int(cpus) else str(int(cpus))


def _seconds(span: float) -> int:
    return max(1, min(round(span), _MOST_SECONDS))
