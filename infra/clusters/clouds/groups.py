"""Groups of machines in a cloud: their names, labels and user. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from regrow.infra.clusters.description import Market, OnVms, Workers
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.template import filled, parts
from regrow.infra.ray.labels import MARKET_LABEL, PRICE_LABEL
from regrow.search.errors import SpecError
from regrow.search.planning import sizes
from regrow.search.planning.sizes import Group

Json = dict[str, Any]
TYPE_LABEL = "node.kubernetes.io/instance-type"
"""The machine's type, as on Kubernetes."""


def template(part: str, **values: Any) -> Json:
    """Return a part of `machines.yaml` with these values."""
    found: Json = filled(parts(Path(__file__).with_name("machines.yaml"))[part], values)
    return found


def labels(prices: Prices, region: str, instance: str, market: Market) -> dict[str, str]:
    """Return the labels by which trials choose nodes and learn their price."""
    found = {MARKET_LABEL: market, TYPE_LABEL: instance}
    price = prices.of(instance, region, market)
    if price is not None:
        found[PRICE_LABEL] = f"{price:.6f}".rstrip("0").rstrip(".")
    return found


def name(place: int, group: Workers) -> str:
    """Return the name of a group's machines, valid as a label value on all clouds."""
    kind = re.sub(r"[^a-z0-9]+", "-", group.type.lower())
    return f"w{place}-{group.market}-{kind}"[:63].rstrip("-")


def parsed(
    form: re.Pattern[str], instance: str, path: str, *, what: str, such: str
) -> re.Match[str]:
    """Return the parts of a type's name. Raises SpecError at `path` for what is none.

    Args:
        form: of such names.
        instance: the name.
        path: its key in the cluster file.
        what: what it should be, for people.
        such: an example.

    """
    found = form.fullmatch(instance)
    if found is None:
        raise SpecError(path, instance, f"is no {what}", f'write one such as "{such}"')
    return found


def of(cluster: OnVms) -> list[Group]:
    """Return the groups of a cluster, as they are sized."""
    return [
        Group(name=name(place, one), market=one.market, most=one.most)
        for place, one in enumerate(cluster.workers)
    ]


def first(cluster: OnVms, place: int) -> int:
    """Return how many machines a group has at the start."""
    return sizes.first(of(cluster))[name(place, cluster.workers[place])]


def on_need(cluster: OnVms, place: int) -> bool:
    """Return whether a group's machines come only for attempts that wait for them."""
    markets = [one.market for one in cluster.workers]
    return sizes.is_elastic(cluster.workers[place].market, markets)


def has_elastic_groups(cluster: OnVms) -> bool:
    """Return whether a cluster has such groups."""
    return any(on_need(cluster, place) for place in range(len(cluster.workers)))
