"""The agents that take part in an experiment, as its log tells it."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.search.events import Joined, Left
from regrow.search.lifecycle import IllegalMove


@dataclass(slots=True, kw_only=True)
class AgentRecord:
    """One agent.

    Attributes:
        joined: the event with which it joined, the last one if it joined several leaders' clusters.
        first: when it first joined, seconds since the epoch.
        present: whether it is part of the current leader's cluster.
        left: when it left, seconds since the epoch; None: it has not.
        why: why it left; empty: it has not.

    """

    joined: Joined
    first: float
    present: bool = True
    left: float | None = None
    why: str = ""


class AgentRecords(dict[str, AgentRecord]):
    """The agents by their ids, in the order in which they joined."""

    def __init__(self) -> None:
        super().__init__()
        self.leaders: list[str] = []
        """The agent that led each session that an agent led."""

    def joined(self, event: Joined) -> None:
        """Fold in an arrival. Raises IllegalMove."""
        before = self.get(event.agent)
        if before is not None and before.present and before.joined.node_id == event.node_id:
            raise IllegalMove(None, None, f"be joined by agent {event.agent} twice")
        if before is None:
            self[event.agent] = AgentRecord(joined=event, first=event.t)
        else:
            before.joined, before.present, before.left, before.why = event, True, None, ""

    def left(self, event: Left) -> None:
        """Fold in a departure. Raises IllegalMove."""
        record = self.get(event.agent)
        if record is None or record.left is not None:
            raise IllegalMove(None, None, f"be left by agent {event.agent}, which is not there")
        record.present, record.left, record.why = False, event.t, event.why

    def led(self, agent: str) -> None:
        """Begin a session: its cluster is a new one, which all have to join. `agent`: its leader;
        empty: a driver without agents.
        """
        for record in self.values():
            record.present = False
        if agent:
            self.leaders.append(agent)
