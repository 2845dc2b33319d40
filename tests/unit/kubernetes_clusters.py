"""Clusters on Kubernetes for tests."""

from __future__ import annotations

from typing import Any

from regrow.infra.clusters.description import Cluster, Kubernetes

SPOT = {"karpenter.sh/capacity-type": "spot"}
FULL: dict[str, Any] = {
    "name": "sweep",
    "on": "kubernetes",
    "image": "registry/sweep:1",
    "namespace": "ml",
    "context": "lab",
    "python": "/opt/venv/bin/python",
    "service_account": "sweep",
    "pull_secrets": ["registry"],
    "secrets": ["aws"],
    "env": {"MODE": "offline-4711", "HF_TOKEN": "$HF_TOKEN"},
    "volumes": {"/data": "sets"},
    "shared": ["/data/state"],
    "expires": "2d",
    "workers": [
        {
            "name": "spot",
            "cpu": 3.5,
            "memory": "16GiB",
            "gpu": 1,
            "market": "spot",
            "most": 30,
            "node_selector": SPOT,
            "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        },
        {"name": "steady", "cpu": 4, "memory": "16GiB", "most": 8},
    ],
}
"""One with all of its keys."""
LEAST: dict[str, Any] = {
    "name": "small",
    "on": "kubernetes",
    "image": "sweep",
    "workers": [{"name": "all", "cpu": 1, "memory": "2GiB", "most": 2}],
}
"""One with the fewest."""


def described(data: dict[str, Any], **changed: Any) -> Kubernetes:
    """The cluster of these data, some of them changed."""
    cluster = Cluster.parse({**data, **changed})
    assert isinstance(cluster, Kubernetes)
    return cluster
