"""Groups of machines as node types of Ray's launcher, with labels, priorities and numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regrow.infra.clusters.description import Head, Market, OnVms, Workers
from regrow.infra.clusters.launcher import Site
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.template import filled, parts
from regrow.infra.ray.labels import MARKET_LABEL, PRICE_LABEL

Json = dict[str, Any]
HEAD = "head"
TYPE_LABEL = "node.kubernetes.io/instance-type"
"""The machine's type, as on Kubernetes."""
FOR_TASKS = 0.7
"""Share of a machine's memory for tasks, the rest being Ray's object store, as Ray itself does."""


def template(part: str, **values: Any) -> Json:
    """Return a part of `machines.yaml` with these values."""
    found: Json = filled(parts(Path(__file__).with_name("machines.yaml"))[part], values)
    return found


def site(
    cluster: OnVms,
    prices: Prices,
    key: str,
    *,
    provider: Json,
    machine: Callable[[Head | Workers, str], Json],
    resources: Callable[[str, str], Json],
    off: str,
    auth: Json | None = None,
) -> Site:
    """Return the launcher file's parts: the head, which takes no trials, and the groups, of which
    an earlier one is preferred.

    Args:
        cluster: the cluster.
        prices: prices per hour.
        key: file of the private key.
        provider: the section of this name.
        machine: returns the cloud's parameters of the head or of a group's machines.
        resources: returns what Ray cannot find out about a type.
        off: command by which a machine ends itself.
        auth: more keys of the section `auth`.

    `machine` and `resources` also get the key of the type in the cluster file, for error messages.

    """
    types: Json = {
        HEAD: {
            "min_workers": 0,
            "max_workers": 0,
            "resources": {"CPU": 0, "GPU": 0},
            "labels": labels(prices, cluster.region, cluster.head.type, "on-demand"),
            "node_config": machine(cluster.head, "head.type"),
        }
    }
    for place, group in enumerate(cluster.workers):
        path = f"workers.{place}.type"
        types[name(place, group)] = {
            "min_workers": group.least,
            "max_workers": group.most,
            "priority": len(cluster.workers) - place,
            "resources": resources(group.type, path),
            "labels": labels(prices, cluster.region, group.type, group.market),
            "node_config": machine(group, path),
        }
    return Site(
        provider={"type": cluster.on, **provider, "cache_stopped_nodes": False},
        auth={"ssh_user": user(cluster), "ssh_private_key": key, **(auth or {})},
        node_types=types,
        most=sum(group.most for group in cluster.workers),
        then=off,
        initialization=_initialization(cluster),
    )


def labels(prices: Prices, region: str, instance: str, market: Market) -> dict[str, str]:
    """Return the labels by which trials choose nodes and learn their price."""
    found = {MARKET_LABEL: market, TYPE_LABEL: instance}
    price = prices.of(instance, region, market)
    if price is not None:
        found[PRICE_LABEL] = f"{price:.6f}".rstrip("0").rstrip(".")
    return found


def user(cluster: OnVms) -> str:
    """Return the user for SSH logins."""
    return cluster.user or "ubuntu"


def name(place: int, group: Workers) -> str:
    """Return the launcher's name of a group's machines, valid as a label value on all clouds."""
    kind = re.sub(r"[^a-z0-9]+", "-", group.type.lower())
    return f"w{place}-{group.market}-{kind}"[:63].rstrip("-")


def _initialization(cluster: OnVms) -> tuple[str, ...]:
    """Return what a machine with a default image runs first: it installs pip, for the rest."""
    if cluster.image is not None or cluster.python is not None:
        return ()
    install = (
        "sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq"
        " python3-pip"
    )
    # The machine's own first boot may hold the packages' lock.
    booted = "cloud-init status --wait >/dev/null || true"
    return (f"{booted}; command -v pip3 >/dev/null || {{ {install}; }}",)
