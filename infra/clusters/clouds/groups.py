"""Groups of machines in a cloud: their names, labels and user. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from regrow.infra.clusters.description import Market, Workers
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.template import filled, parts
from regrow.infra.ray.labels import MARKET_LABEL, PRICE_LABEL

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
