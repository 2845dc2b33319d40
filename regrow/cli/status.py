"""`status`: what of the station runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from regrow.cli.options import JsonOption, StateOption
from regrow.infra.state.places import Places
from regrow.live.text import age
from regrow.station import record
from regrow.station.state import Serving, Standing, standing


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
    for served in found.served:
        for line in told(served, now):
            console.print(line, markup=False, soft_wrap=True)
    for one in found.scheduled:
        console.print(f"next:    {one}", markup=False, soft_wrap=True)
    for line in found.running:
        console.print(f"runs:    {line}", markup=False, soft_wrap=True)


def told(served: Serving, now: float) -> Iterator[str]:
    """A server: where, with what, what was refused last, what is in the way."""
    said = served.said
    yield f"serves:  {served.name}: {said.url or served.state}{'' if said.main is None else f' {said.main.text}'}"
    if said.url and said.main is None:
        yield "         waits for a checkpoint to serve"
    if said.canary is not None:
        yield f"         canary: {said.canary.text}"
    if said.refused:
        yield f"         refused {age(now - said.refused_at)} ago: {said.refused}"
    if said.trouble:
        yield f"         {said.trouble}; it is tried again"
