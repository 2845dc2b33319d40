"""The agents of the cluster, as its leader's driver sees them: nodes of Ray with an agent's label,
and why an agent left, which the state has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from regrow.flows.coordinator.present import NODE_LOST, PresentAgents
from regrow.infra.ray.labels import AGENT_LABEL, ENDS_LABEL, MARKET_LABEL
from regrow.infra.ray.nodes import Nodes
from regrow.infra.state.agents import LEASE_SECONDS, Agents
from regrow.search.events import Joined
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports.store import Store
from regrow.tasks.process import background

LOOK_SECONDS = 1.0
STORE_SECONDS = 5.0
"""Seconds between two looks at the store, unless an agent's node is gone."""


class Members:
    """Collects the agents. `look` runs in a thread, as the store may be slow."""

    def __init__(self, nodes: Nodes, store: Store) -> None:
        self._nodes, self._agents = nodes, Agents(store)
        self._looked = -math.inf
        self._there: dict[str, Joined] = {}
        self._missing: dict[str, float] = {}
        """Since when an agent has no node, if it is not known why (monotonic seconds)."""
        self._present = PresentAgents(nodes=(), left={})

    def present(self) -> PresentAgents:
        """Return who is there, as last seen."""
        return self._present

    def refresh(self) -> None:
        """See who is there, and why others are gone."""
        there = {node.agent: node for node in map(_agent, self._nodes.alive()) if node is not None}
        now = time.monotonic()
        left = {name: why for name, why in self._present.left.items() if name not in there}
        missing = self._there.keys() - there.keys() - left.keys()
        self._missing = {name: self._missing.get(name, now) for name in missing}
        if missing or now - self._looked > STORE_SECONDS:
            self._looked = now
            with suppress(RegrowError):  # out of reach: the next look may succeed
                self._agents.refresh()
                gone = {name: why for name, why in self._gone(now) if name not in there}
                left |= gone
        self._there |= there
        self._present = PresentAgents(nodes=tuple(there.values()), left=left)

    def _gone(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield the agents that have left or are lost, and why. One whose node is gone may be about
        to write why it leaves.
        """
        for name, seen in self._agents.members.items():
            if (found := self._agents.left(name)) is not None:
                yield name, found.why
            elif seen.lost:
                yield name, "it was lost"
            elif now - self._missing.get(name, now) > LEASE_SECONDS:
                yield name, NODE_LOST


@contextmanager
def members(nodes: Nodes, store: Store, *, by_agent: bool) -> Iterator[Members | None]:
    """Watch the agents within the block; yields None for a driver that no agent runs."""
    if not by_agent:
        yield None
        return
    found = Members(nodes, store)
    found.refresh()
    with background.every(LOOK_SECONDS, found.refresh, name="members", wait=LOOK_SECONDS):
        yield found


def _agent(node: Mapping[str, Any]) -> Joined | None:
    """Return the agent of a node; None if it has none."""
    labels, resources = node.get("Labels", {}), node["Resources"]
    if not (name := labels.get(AGENT_LABEL)):
        return None
    ends = labels.get(ENDS_LABEL, "")
    return Joined(
        t=0.0,
        agent=name,
        host=node.get("NodeManagerHostname", ""),
        node_id=node["NodeID"],
        cpus=resources.get("CPU", 0.0),
        gpus=resources.get("GPU", 0.0),
        market=labels.get(MARKET_LABEL, ""),
        ends=float(ends) if ends.isdecimal() else None,
    )
