"""`agents`: who takes part in an experiment that agents run."""

from __future__ import annotations

import json
import time

from regrow.cli.console import damage_told_last, plain_console
from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra.log.reading import replay
from regrow.infra.state.agents import Agents
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
        there = Agents(store)
        there.look()
        joining = [one for one in there.living() if one.id not in history.agents]
        if as_json:
            named = [{"agent": one.id, "host": one.host, "state": "joining"} for one in joining]
            print(json.dumps([*found, *named]))
            return
        if not (found or joining):
            tell(f"{name} has no agents; `{places.command('join', name)}` makes this machine one")
            return
        now, table = time.time(), LineTable()
        for title in ("agent", "host", "state", "since"):
            table.add_column(title)
        for title in ("cpus", "gpus"):
            table.add_column(title, justify="right")
        for title in ("market", "ends", "runs", "why it left"):
            table.add_column(title)
        for one in found:
            table.add_row(
                one["agent"],
                one["host"],
                one["state"],
                f"{text.age(now - one['since'])} ago",
                f"{one['cpus']:g}",
                f"{one['gpus']:g}",
                one["market"],
                text.ending_in(one, now),
                _named(one["trials"]),
                one["why"],
            )
        for record in joining:
            since = f"{text.age(now - record.joined)} ago"
            cpus = f"{record.cpus:g}"
            table.add_row(record.id, record.host, "joining", since, cpus, "", record.market)
        for line in views.line(history, alive=alive):
            tell(line)
        plain_console().print(table)


def _named(trials: list[int]) -> str:
    if not trials:
        return ""
    more = f" and {len(trials) - _MOST} more" if len(trials) > _MOST else ""
    return f"trial{text.ends(len(trials))} {', '.join(map(str, trials[:_MOST]))}{more}"
