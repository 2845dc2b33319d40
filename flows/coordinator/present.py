"""The agents by the driver: arrivals and departures that the log gets, and machines that end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from regrow.search.events import Joined, Left
from regrow.search.history import History

SAVE_SECONDS = 10.0
"""Seconds that saving a checkpoint and leaving may take."""
NODE_LOST = "its node of Ray was lost"
"""Why an agent left that is present itself, and starts another node."""
STEPS = 2
"""Steps that a trial must be able to do before its machine ends, else it leaves."""


class PresentAgents(msgspec.Struct, frozen=True, kw_only=True):
    """The agents of the cluster now, and why others are gone, by their ids."""

    nodes: tuple[Joined, ...]
    left: Mapping[str, str]


def changes(history: History, seen: PresentAgents, now: float) -> Iterator[Joined | Left]:
    """Yield the departures and arrivals since the log's last event."""
    there = {node.agent: node for node in seen.nodes}
    for name, record in history.agents.items():
        if record.left is None and name not in there and name in seen.left:
            yield Left(t=now, agent=name, why=seen.left[name])
    for name, node in there.items():
        known = history.agents.get(name)
        if known is None or not known.present or known.joined.node_id != node.node_id:
            if known is not None and known.present:
                yield Left(t=now, agent=name, why=seen.left.get(name, NODE_LOST))
            yield msgspec.structs.replace(node, t=now)


def ending(history: History, nodes: Sequence[Joined], now: float) -> Iterator[tuple[str, str]]:
    """Yield (node ID, reason) of nodes whose machine ends before a trial there could do a few more
    steps: no step is begun that cannot end.
    """
    if not any(node.ends for node in nodes):
        return
    attempts = (history.trials[number].attempts[-1] for number in history.running)
    longest = max((attempt.step_seconds for attempt in attempts), default=0.0)
    need = STEPS * longest + SAVE_SECONDS
    for node in nodes:
        if node.ends is not None and now > node.ends - need:
            yield node.node_id, f"the time of agent {node.agent} ends"
