"""The agents of an experiment as plain data: who is there, what it runs, who left and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from regrow.search.history import History
from regrow.search.history.agents import AgentRecord


def view(history: History, *, alive: bool) -> list[dict[str, Any]]:
    """Return the agents in the order in which they joined; empty for a driver without agents.

    `state` is "leads", "works", "left", "away" (not in the current leader's cluster yet) or "ended"
    (there when the experiment ended). Times are seconds since the epoch.
    """
    leader = history.opened.agent if history.opened is not None else ""
    return [
        {
            "agent": name,
            "host": record.joined.host,
            "state": _state(name, record, leader, alive=alive),
            "since": record.first,
            "cpus": record.joined.cpus,
            "gpus": record.joined.gpus,
            "market": record.joined.market,
            "ends": record.joined.ends,
            "trials": _trials(history, record) if alive else [],
            "led": history.agents.leaders.count(name),
            "left": record.left,
            "why": record.why,
        }
        for name, record in history.agents.items()
    ]


def joining(member: Any) -> dict[str, Any]:
    """Return an agent that the log does not have yet, a Member of the state, in the same form."""
    return {
        "agent": member.id,
        "host": member.host,
        "state": "joining",
        "since": member.joined,
        "cpus": member.cpus,
        "market": member.market,
        "ends": member.ends,
        "gpus": 0.0,
        "trials": [],
        "led": 0,
        "left": None,
        "why": "",
    }


def line(history: History, *, alive: bool) -> Iterator[str]:
    """Yield a line about the agents, for people; none without agents."""
    found = view(history, alive=alive)
    if not found:
        return
    count = sum(one["state"] in ("leads", "works") for one in found) if alive else len(found)
    parts = [f"{count} agent{'' if count == 1 else 's'}{'' if alive else ' took part'}"]
    leader = history.agents.leaders[-1:]
    parts += [f"{name} {'leads' if alive else 'led last'}" for name in leader]
    if (changes := sum(one != after for one, after in pairwise(history.agents.leaders))) > 0:
        parts.append(f"the lead changed {changes} time{'' if changes == 1 else 's'}")
    yield "; ".join(parts)


def _state(name: str, record: AgentRecord, leader: str, *, alive: bool) -> str:
    if record.left is not None:
        return "left"
    if not alive and record.present:
        return "ended"
    if not record.present:
        return "away"
    return "leads" if name == leader else "works"


def _trials(history: History, record: AgentRecord) -> list[int]:
    if not record.present:
        return []
    return [
        number
        for number in sorted(history.running)
        if (attempt := history.trials[number].attempt) is not None
        and record.joined.node_id in attempt.nodes
    ]
