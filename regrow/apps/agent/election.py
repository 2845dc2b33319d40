"""Which agent leads next. Pure functions of what an agent has seen.

Two agents that see different things may both think that it is their turn: the claim in the store,
which only one of them gets, decides. An order only saves useless claims, and prefers machines that
stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from regrow.infra.state.agents import BEAT_SECONDS, LEASE_SECONDS, AgentMember, LastSeen, TermEnd

TURN_SECONDS = 2.0
"""Seconds that an agent leaves to each agent before it in the order."""
MOST_TURNS = 4
"""Turns after which any agent claims: those before it may not be able to."""


def order(members: Iterable[AgentMember]) -> list[AgentMember]:
    """Return the agents that may lead, the preferred one first: machines that are not spot machines
    before those that are, then the one that stays the longest, then the one that joined first.
    """
    return sorted(
        (one for one in members if one.leads),
        key=lambda one: (
            one.market == "spot",
            -(math.inf if one.ends is None else one.ends),
            one.joined,
            one.id,
        ),
    )


def wait(members: Iterable[AgentMember], me: str) -> float | None:
    """Return for how many seconds an agent waits before it claims the lead; None: it may not."""
    names = [one.id for one in order(members)]
    return min(names.index(me), MOST_TURNS) * TURN_SECONDS if me in names else None


def refused_after(pause: float) -> float:
    """Return for how many seconds a leader may give no sign of life if its machine refuses
    connections to its cluster: then its processes have ended. `pause`: seconds between two looks.
    """
    return BEAT_SECONDS + 2 * pause


def has_no_leader(
    leader: LastSeen | None, over: TermEnd | None, *, patience: float = LEASE_SECONDS
) -> bool:
    """Return whether nobody leads. `patience`: seconds without a sign of life after which a leader
    counts as lost.
    """
    return leader is None or over is not None or leader.silent > patience
