"""The pods of a cluster: templates of head and workers for KubeRay. Pure functions.

KubeRay itself adds `ray start --block`, the token, the probes and the autoscaler's container. It
does not define how a pod ends gracefully (kuberay#5004): that is done here.
"""

from __future__ import annotations

from typing import Any

from regrow.infra.clusters.description import HeadPod, Kubernetes, Pods

Json = dict[str, Any]

CLUSTER = "regrow.io/cluster"
"""Label of all objects of a cluster, with its name."""
MARKET = "ray.io/market-type"
INSTANCE = "regrow.io/instance-type"
HEAD = "ray-head"
WORKER = "ray-worker"
"""The names of the containers."""
GRACE_SECONDS = 120
"""Seconds between the notice that a pod is to end and its SIGKILL. No cloud gives spot machines
more.
"""
LEAVE_SECONDS = GRACE_SECONDS - 10
"""Seconds for Ray to drain the node; the rest is for what follows."""
LOST_SECONDS = 30
"""Seconds that a head stays bound to a node that does not answer. Kubernetes' default is 300 s, as
long as KubeRay waits for a silent head before it gives the job up without another try.
"""
DASHBOARD_PORT = 8265
TOKEN_KEY = "auth_token"  # noqa: S105 - a key's name, not a secret
"""The key in the token's Secret that KubeRay reads."""
_HERE = "regrow.infra.clusters.kubernetes"
SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Labels of nodes that may be taken away: of Karpenter, EKS, GKE and AKS."""


def names(cluster: Kubernetes) -> dict[str, str]:
    """Return the names of the objects beside the cluster itself."""
    return {part: f"{cluster.name}-{part}" for part in ("env", "token", "project", "network")}


def python(cluster: Kubernetes) -> str:
    """Return the interpreter in the image that has regrow."""
    return cluster.python or "python"


def head(cluster: Kubernetes, *, project: bool = False, idle: bool = False) -> Json:
    """Return the template of the head's pod.

    `project`: whether the project's files are in a Secret. `idle`: whether to add a container that
    suspends the cluster once nothing has run for `idle` seconds of the cluster file.
    """
    asked = cluster.head
    template = _template(cluster, HEAD, asked, {})
    metadata, spec = template["metadata"], template["spec"]
    metadata["annotations"]["karpenter.sh/do-not-disrupt"] = "true"
    spec["affinity"] = _off_spot()
    spec["tolerations"] = [
        *spec.get("tolerations", ()),
        *(
            {
                "key": f"node.kubernetes.io/{what}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": LOST_SECONDS,
            }
            for what in ("not-ready", "unreachable")
        ),
    ]
    if project:
        _add_project(cluster, spec)
    if idle:
        spec["containers"].append(_idle(cluster))
    return template


def worker(cluster: Kubernetes, group: Pods) -> Json:
    """Return the template of a group's pods."""
    gpus = {"nvidia.com/gpu": str(group.gpu)} if group.gpu else {}
    template = _template(cluster, WORKER, group, gpus)
    spec = template["spec"]
    spec["automountServiceAccountToken"] = False  # trials do not need the API server
    if group.gpu:
        taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        spec["tolerations"] = [*spec.get("tolerations", ()), taint]
    if group.market != "spot":
        spec["affinity"] = _off_spot()
    return template


def quantity(cpus: float) -> str:
    """Return CPUs in Kubernetes' notation."""
    return f"{round(cpus * 1000)}m" if cpus != int(cpus) else str(int(cpus))


def confined() -> Json:
    """Return what a container may not do. Its user is left to the image: many have only root."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _template(cluster: Kubernetes, name: str, asked: HeadPod | Pods, more: Json) -> Json:
    amounts = {"cpu": quantity(asked.cpu), "memory": str(asked.memory), **more}
    sources = [{"secretRef": {"name": secret}} for secret in cluster.secrets]
    if cluster.env:  # added last, as the last source of a variable counts
        sources.append({"secretRef": {"name": names(cluster)["env"]}})
    container: Json = {
        "name": name,
        "image": cluster.image,
        "env": [
            {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": str(LEAVE_SECONDS)},
            {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
        ],
        "lifecycle": {
            "preStop": {
                "exec": {"command": [python(cluster), "-m", f"{_HERE}.leave", str(LEAVE_SECONDS)]}
            }
        },
        # Limits equal requests: such pods are evicted last from a node that runs out of memory.
        "resources": {"limits": dict(amounts), "requests": dict(amounts)},
        "securityContext": confined(),
    }
    if sources:
        container["envFrom"] = sources
    spec: Json = {
        "containers": [container],
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": GRACE_SECONDS,
    }
    if cluster.volumes:
        volumes = sorted(cluster.volumes.items())
        container["volumeMounts"] = [
            {"name": f"claim-{n}", "mountPath": path} for n, (path, _) in enumerate(volumes)
        ]
        spec["volumes"] = [
            {"name": f"claim-{n}", "persistentVolumeClaim": {"claimName": claim}}
            for n, (_, claim) in enumerate(volumes)
        ]
    if asked.node_selector:
        spec["nodeSelector"] = dict(asked.node_selector)
    if asked.tolerations:
        spec["tolerations"] = [dict(one) for one in asked.tolerations]
    if cluster.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in cluster.pull_secrets]
    if cluster.service_account:
        spec["serviceAccountName"] = cluster.service_account
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    return {
        "metadata": {"labels": {CLUSTER: cluster.name}, "annotations": annotations},
        "spec": spec,
    }


def _off_spot() -> Json:
    """Return the affinity that keeps a pod off nodes with a spot label; nodes without a label count
    as on-demand.
    """
    terms = [
        {"key": key, "operator": "NotIn", "values": [value]}
        for key, value in sorted(SPOT_LABELS.items())
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


PROJECT_FOLDER = "/project"
_PACKED = "/etc/regrow/project"


def _add_project(cluster: Kubernetes, spec: Json) -> None:
    container = spec["containers"][0]
    container.setdefault("volumeMounts", []).append(
        {"name": "project", "mountPath": PROJECT_FOLDER}
    )
    spec.setdefault("volumes", []).extend(
        (
            {"name": "project", "emptyDir": {"sizeLimit": "256Mi"}},
            {"name": "packed", "secret": {"secretName": names(cluster)["project"]}},
        )
    )
    amounts = {"cpu": "200m", "memory": "256Mi"}
    spec["initContainers"] = [
        {
            "name": "project",
            "image": cluster.image,
            "command": [
                python(cluster),
                "-m",
                "tarfile",
                "-e",
                f"{_PACKED}/project.tar.gz",
                PROJECT_FOLDER,
            ],
            "volumeMounts": [
                {"name": "project", "mountPath": PROJECT_FOLDER},
                {"name": "packed", "mountPath": _PACKED, "readOnly": True},
            ],
            "resources": {"limits": dict(amounts), "requests": dict(amounts)},
            "securityContext": confined(),
        }
    ]


def _idle(cluster: Kubernetes) -> Json:
    """Return the container that suspends a cluster on which nothing has run for `idle`: KubeRay has
    no such rule for a RayCluster.

    It uses the rights that KubeRay gives the head's service account for its autoscaler (`get` and
    `patch` of the cluster).
    """
    amounts = {"cpu": "100m", "memory": "256Mi"}
    token = {"name": names(cluster)["token"], "key": TOKEN_KEY}
    command = [
        python(cluster),
        "-m",
        f"{_HERE}.idle",
        "--cluster",
        cluster.name,
        "--namespace",
        cluster.namespace,
        "--seconds",
        f"{cluster.idle:g}",
    ]
    return {
        "name": "idle",
        "image": cluster.image,
        "command": command,
        "env": [{"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": token}}],
        "resources": {"limits": dict(amounts), "requests": dict(amounts)},
        "securityContext": confined(),
    }
