"""`agents`: who takes part in an experiment that agents run."""

from __future__ import annotations

import json
import time
from typing import Any

from regrow.cli.console import damage_told_last, plain_console
from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra.log.reading import replay
from regrow.infra.state.agents import living
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.show.live import text
from regrow.show.live.terminal import LineTable, tell
from regrow.show.views import agents as views

_MOST = 8
"""Trials of an agent that are named."""


def agents(name: NameArgument, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show the agents of an experiment: since when they are there, what they run, which one leads,
    who left and why.
    """
    places = Places.at(state)
    store = places.known(name)
    with damage_told_last() as noted:
        history = replay(store, name, on_damage=noted)
        alive = runs(places, name)
        found = views.view(history, alive=alive)
        joining = [
            views.joining(one.id, one.host, one.joined, one.cpus, one.market, one.ends)
            for one in living(store)
            if one.id not in history.agents
        ]
        if as_json:
            print(json.dumps([*found, *joining]))
            return
        if not (found or joining):
            tell(f"{name} has no agents; `{places.command('join', name)}` makes this machine one")
            return
        for line in views.line(history, alive=alive):
            tell(line)
        plain_console().print(_table([*found, *joining], time.time()))


def _table(found: list[dict[str, Any]], now: float) -> LineTable:
    """Return the table, without columns in which nothing stands."""
    rows = [
        {
            "agent": one["agent"],
            "host": one["host"],
            "state": one["state"],
            "since": f"{text.age(now - one['since'])} ago",
            "cpus": f"{one['cpus']:g}",
            "gpus": f"{one['gpus']:g}" if one["gpus"] else "",
            "market": one["market"],
            "ends": text.ending_in(one, now),
            "runs": _named(one["trials"]),
            "why it left": one["why"],
        }
        for one in found
    ]
    shown = [title for title in rows[0] if any(row[title] for row in rows)]
    table = LineTable()
    for title in shown:
        table.add_column(title, justify="right" if title in ("cpus", "gpus") else "left")
    for row in rows:
        table.add_row(*(row[title] for title in shown))
    return table


def _named(trials: list[int]) -> str:
    if not trials:
        return ""
    more = f" and {len(trials) - _MOST} more" if len(trials) > _MOST else ""
    return f"trial{text.ends(len(trials))} {', '.join(map(str, trials[:_MOST]))}{more}"
