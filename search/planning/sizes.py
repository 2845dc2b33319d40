"""How many machines the groups of a cluster should have now. Pure.

Spot machines are there from the beginning to the end. On-demand machines beside them come for
attempts that wait for one (see `market.py`), and leave when none needs them any more. One of them
always stays, where there is a group on demand: it leads, and asks for more where all spot machines
are gone. Other machines may leave once the trials that are left need fewer of them, as where early
stopping has ended most (Misra et al., "RubberBand", EuroSys 2021).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regrow.search.history import Attempt, History

SETTLE_SECONDS = 20.0
"""Seconds that an attempt waits before it counts: a free machine would have taken it by then."""
KEPT = 1
"""On-demand machines beside spot machines that are there without an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of machines.

    Attributes:
        name: its name.
        market: "spot" or "on-demand".
        most: machines that it may have.
        there: machines that it has, those that are starting included.

    """

    name: str
    market: str
    most: int
    there: int = 0


def first(groups: Sequence[Group]) -> dict[str, int]:
    """Return how many machines each group has at the start."""
    left, found = KEPT, {}
    for one in groups:
        found[one.name] = one.most
        if is_elastic(one.market, [other.market for other in groups]):
            found[one.name] = min(left, one.most)
            left -= found[one.name]
    return found


def is_elastic(market: str, markets: Sequence[str]) -> bool:
    """Return whether machines of this market come only for attempts that wait for them. `markets`:
    those of all groups of the cluster.
    """
    return market == "on-demand" and "spot" in markets


def sizes(history: History, groups: Sequence[Group], now: float) -> dict[str, int]:
    """Return how many machines each group that comes on need should have. Never fewer than it has:
    a machine itself leaves when it is idle.
    """
    markets = [one.market for one in groups]
    elastic = [one for one in groups if is_elastic(one.market, markets)]
    there = sum(one.there for one in elastic)
    coming = max(0, there - len(_present(history)))
    more = max(_machines(history, now) - coming, KEPT - there)
    found = {}
    for one in elastic:
        added = max(0, min(more, one.most - one.there))
        found[one.name] = one.there + added
        more -= added
    return found


def is_short(history: History, now: float) -> bool:
    """Return whether more on-demand machines may be needed than take part."""
    over = history.closing is not None or history.closed is not None
    return not over and (len(_present(history)) < KEPT or _machines(history, now) > 0)


def idle(history: History, agent: str, now: float) -> float:
    """Return for how many seconds an on-demand machine had no attempt, 0 if it has one, if an
    attempt waits for such a machine, or if it is the one that stays. `agent`: id of its agent.
    """
    present = _present(history)
    if agent not in present or agent == _stays(history) or any(_waiting(history)):
        return 0.0
    return max(0.0, now - _last_used(history, agent))


def spare(history: History, agent: str, now: float) -> float:
    """Return for how many seconds a machine had no attempt that can have none any more; 0 if it has
    one, may have one, or leads. `agent`: id of its agent.

    A trial needs one machine for each of its workers at most, and trials only become fewer. Of the
    idle machines those that joined first stay.
    """
    over = history.closing is not None or history.closed is not None
    works = [name for name, one in history.agents.items() if one.present and one.joined.cpus > 0]
    leader = history.agents.leaders[-1:]
    if over or history.unlimited or agent not in works or agent in leader:
        return 0.0
    needed = (history.total - history.ended) * history.spec.resources.widths[1]
    last = {name: _last_used(history, name) for name in works if name not in leader}
    unused = [name for name, since in last.items() if since < math.inf]
    kept = max(0, needed - (len(works) - len(unused)))
    return max(0.0, now - last[agent]) if agent in unused[kept:] else 0.0


def _last_used(history: History, agent: str) -> float:
    """Return when a machine had its last attempt, or joined; infinite if it has one."""
    joined = history.agents[agent].joined
    since = joined.t
    for trial in history.trials:
        for attempt in trial.attempts:
            if joined.node_id in attempt.nodes:
                since = max(since, math.inf if attempt.t_ended is None else attempt.t_ended)
    return since


def _present(history: History) -> list[str]:
    """Return the agents on on-demand machines that take part."""
    return [
        name
        for name, one in history.agents.items()
        if one.present and one.joined.market == "on-demand"
    ]


def _stays(history: History) -> str:
    """Return the agent whose on-demand machine stays: the leader, else the first one."""
    present, leader = _present(history), history.agents.leaders[-1:]
    return next((one for one in leader if one in present), present[0])


def _waiting(history: History) -> Iterator[Attempt]:
    """Yield the attempts that wait for an on-demand machine."""
    for number in sorted(history.running):
        attempt = history.trials[number].attempts[-1]
        wish = attempt.market or ("on-demand" if attempt.avoid_spot else "")
        if attempt.t_began is None and attempt.t_ended is None and wish == "on-demand":
            yield attempt


def _machines(history: History, now: float) -> int:
    """Return how many machines the attempts need that have waited for some time."""
    if history.closing is not None or history.closed is not None:
        return 0
    slots = sum(a.width for a in _waiting(history) if now - a.t_started >= SETTLE_SECONDS)
    return math.ceil(slots / _slots(history))


def _slots(history: History) -> int:
    """Return how many slots attempts have on the machine that runs most of them; 1 if none runs."""
    used: Counter[str] = Counter()
    for number in history.running:
        attempt = history.trials[number].attempts[-1]
        if attempt.t_began is not None and attempt.t_ended is None:
            used[attempt.node_id] += 1 if attempt.others else attempt.width
            used.update(other.node_id for other in attempt.others)
    return max(1, *used.values()) if used else 1
