"""Groups of machines as node types of Ray's launcher, with labels, priorities and numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from regrow.infra.clusters.description import Market, OnVms, Workers
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.provider import Offer

Json = dict[str, Any]
HEAD = "head"
MARKET_LABEL = "ray.io/market-type"
"""Ray's label, as in infra/ray/nodes.py, which is not imported here because it imports Ray."""
TYPE_LABEL = "node.kubernetes.io/instance-type"
"""The machine's type, as on Kubernetes."""
PRICE_LABEL = "regrow.io/price"
"""USD per hour, if known."""


def name(place: int, group: Workers) -> str:
    """Return the launcher's name for the machines of a group, valid as a label value on all
    clouds.
    """
    return f"w{place}-{group.market}-{re.sub(r'[^a-z0-9]+', '-', group.type.lower())}"[:63].rstrip(
        "-"
    )


def node_types(
    cluster: OnVms,
    prices: Prices,
    head: Json,
    worker: Callable[[Workers, str], Json],
    resources: Callable[[str, str], Json],
) -> Json:
    """Return all node types: the head, which takes no trials, and the groups, of which an earlier
    one is preferred.

    Args:
        cluster: the cluster.
        prices: prices per hour.
        head: the cloud's parameters of the head.
        worker: returns the cloud's parameters of a group's machines.
        resources: returns what Ray cannot find out about a type.

    `worker` and `resources` also get the key of the type in the cluster file, for error messages.

    """
    place_of_head = prices.of(cluster.head.type, cluster.region, "on-demand")
    found: Json = {
        HEAD: {
            "min_workers": 0,
            "max_workers": 0,
            "resources": {"CPU": 0, "GPU": 0},
            "labels": labels(cluster.head.type, "on-demand", place_of_head),
            "node_config": head,
        }
    }
    for place, group in enumerate(cluster.workers):
        price, key = prices.of(group.type, cluster.region, group.market), f"workers.{place}.type"
        found[name(place, group)] = {
            "min_workers": group.least,
            "max_workers": group.most,
            "priority": len(cluster.workers) - place,
            "resources": resources(group.type, key),
            "labels": labels(group.type, group.market, price),
            "node_config": worker(group, key),
        }
    return found


def labels(instance: str, market: Market, price: float | None) -> dict[str, str]:
    """Return the labels of the nodes of a type, by which trials choose nodes and learn their
    price.
    """
    found = {MARKET_LABEL: market, TYPE_LABEL: instance}
    return (
        found if price is None else {**found, PRICE_LABEL: f"{price:.6f}".rstrip("0").rstrip(".")}
    )


def offers(cluster: OnVms, prices: Prices) -> list[Offer]:
    """Return the most that may be started."""

    def price(instance: str, market: Market) -> float | None:
        return prices.of(instance, cluster.region, market)

    head = Offer(
        role="head",
        type=cluster.head.type,
        market="on-demand",
        most=1,
        price=price(cluster.head.type, "on-demand"),
    )
    return [
        head,
        *(
            Offer(
                role="workers",
                type=one.type,
                market=one.market,
                most=one.most,
                price=price(one.type, one.market),
            )
            for one in cluster.workers
        ),
    ]


def most(cluster: OnVms) -> int:
    """Return the most workers at a time."""
    return sum(group.most for group in cluster.workers)


def initialization(cluster: OnVms) -> tuple[str, ...]:
    """Return what a machine with a default image runs first: it installs pip, which the image lacks
    and the environment needs.
    """
    if cluster.image is not None or cluster.python is not None:
        return ()
    install = (
        "sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq"
        " python3-pip"
    )
    return (  # the machine's own first boot may hold the packages' lock
        (
            "cloud-init status --wait >/dev/null || true; command -v pip3 >/dev/null || {"
            f" {install}; }}"
        ),
    )
