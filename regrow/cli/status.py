"""`status`: what of the station runs."""

from __future__ import annotations

import json
import time

from rich.console import Console
from rich.table import Table

from regrow.cli.options import JsonOption, StateOption
from regrow.infra.state.places import Places
from regrow.live.text import age
from regrow.station import record
from regrow.station.state import Standing, standing


def status(state: StateOption = None, as_json: JsonOption = False) -> None:
    """Say what of the station runs, since when, with how much memory, and where its pages are."""
    places = Places.at(state)
    station = record.find(places)
    found = standing(station, places) if station is not None else None
    if as_json:
        print(json.dumps(None if found is None else found.to_json()))
    elif found is None:
        print(f"no station runs on {places.root}; `regrow up` starts one")
    else:
        _print(places, found)


def _print(places: Places, found: Standing) -> None:
    console = Console(highlight=False)
    now = time.time()
    console.print(f"station of {places.root}, up since {age(now - found.station.since)}", markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("part", "state", "process", "up since", "restarts", "memory"):
        table.add_column(column, justify="right" if column in ("process", "restarts", "memory") else "left")
    for part in found.parts:
        table.add_row(
            part.name, part.state, str(part.pid or "-"), age(now - part.since) if part.pid else "-", str(part.restarts),
            f"{part.memory / 1e6:,.0f} MB" if part.memory else "-",
        )
    console.print(table)
    for name, url in found.pages:
        console.print(f"{name + ':':9}{url}", markup=False, soft_wrap=True)
    for one in found.scheduled:
        console.print(f"next:    {one}", markup=False, soft_wrap=True)
    for line in found.running:
        console.print(f"runs:    {line}", markup=False, soft_wrap=True)
