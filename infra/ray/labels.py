"""Labels of Ray's nodes, and the variable by which a process knows its agent's node."""

from __future__ import annotations

import math
from collections.abc import Mapping

NODE = "REGROW_NODE"
"""Variable with the id of the agent whose Ray node a process belongs to."""
AGENT_LABEL = "regrow-agent"
"""Label with the id of the agent that a Ray node belongs to."""
ENDS_LABEL = "regrow-ends"
"""Label with the time at which a node's machine ends, seconds since the epoch."""
MARKET_LABEL = "ray.io/market-type"
"""Ray's label for the kind of a node's machine: "spot" or "on-demand"."""
PRICE_LABEL = "regrow.io/price"
"""Label with the price of the whole node, an hour."""


def price_of(labels: Mapping[str, str]) -> float | None:
    """Return the price in a node's labels; None if it is missing or not a price."""
    try:
        price = float(labels.get(PRICE_LABEL, ""))
    except ValueError:
        return None
    return price if 0 <= price < math.inf else None
