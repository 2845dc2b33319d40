"""Machines on need: the leader starts more of them, and one that is idle leaves by itself. What is
decided is in `search/planning/sizes.py`; both follow the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import inf

from regrow.apps.agent.agent import AgentProcess
from regrow.infra.clusters.clouds.own_fleet import OwnFleet
from regrow.infra.log.follower import Follower
from regrow.infra.log.subscription import Batch, Subscription
from regrow.search.durations import in_words
from regrow.search.history import History
from regrow.search.planning import sizes
from regrow.tasks.errors import RegrowError

PACE = (10.0, 15.0)
"""Seconds between two looks at the log. A machine takes minutes to come."""
REFUSED_SECONDS = 300.0
"""Seconds for which a group of which the cloud refused to start machines comes after the others: a
type that is sold out stays so for minutes or hours.
"""


def starting_machines(agent: AgentProcess) -> AbstractContextManager[object]:
    """Start machines as attempts wait for them, within the block, if this machine's fleets have
    groups that come on need.
    """
    fleet = agent.request.fleet
    if fleet is None:
        return nullcontext()
    refused: dict[str, float] = {}
    return _followed(agent, lambda history: _grow(agent, fleet, history, time.time(), refused))


def leaving(agent: AgentProcess) -> AbstractContextManager[object]:
    """Have the agent leave once its machine is idle, within the block: if it came on need, or has a
    time after which it leaves.
    """
    fleet, most = agent.request.fleet, agent.request.idle
    if fleet is not None and fleet.on_need:
        return _followed(agent, lambda history: _leave(agent, sizes.idle, history, fleet.idle))
    if most is not None:
        return _followed(agent, lambda history: _leave(agent, sizes.spare, history, most))
    return nullcontext()


def _grow(
    agent: AgentProcess, fleet: OwnFleet, history: History, now: float, refused: dict[str, float]
) -> None:
    """Start machines that are short. `refused`: by group, when the cloud refused to start some."""
    if not sizes.is_short(history, now):
        return
    try:
        groups = fleet.sized()
    except RegrowError as error:
        agent.announce(f"{error}; trying again")
        return
    # Stable: groups that were not refused lately stay in the order of the cluster file.
    ordered = sorted(groups, key=lambda one: now - refused.get(one.name, -inf) < REFUSED_SECONDS)
    wanted = sizes.sizes(history, ordered, now)
    for one in ordered:
        if (more := wanted.get(one.name, one.there) - one.there) <= 0:
            continue
        try:
            fleet.start(one.name, more)
        except RegrowError as error:
            refused[one.name] = now
            agent.announce(f"{error}; trying again")
        else:
            agent.announce(f"{more} more of {one.name}, as trials wait for them")


def _leave(
    agent: AgentProcess,
    unused: Callable[[History, str, float], float],
    history: History,
    most: float,
) -> None:
    """Have the agent leave if its machine was not used for `most` seconds."""
    if unused(history, agent.me.id, time.time()) >= most:
        agent.notices.idle = f"its machine had no trial for {in_words(most)}"


def _followed(
    agent: AgentProcess, act: Callable[[History], None]
) -> AbstractContextManager[object]:
    """Follow the log within the block, in a thread, and act on all that it tells."""
    history = History(agent.request.name)

    def apply(batch: Batch) -> None:
        for event in batch.events():
            history.apply(event)
        if batch.trouble is None and not batch.more and history.created is not None:
            act(history)

    log = Subscription(Follower(agent.store, list_every=1), PACE)
    return log.in_background(apply, "sizes", patience=0.0)
