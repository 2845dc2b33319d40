"""`status`: shows what runs in the station."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from regrow.cli.options import JsonOption, StateOption
from regrow.infra.state import passwords
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.show.live.terminal import LineTable, PlainConsole, tell
from regrow.show.live.text import age

if TYPE_CHECKING:
    from regrow.apps.station.state import Serving, StationStatus


def status(state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show the parts of the station, since when they run, their memory, and the addresses of its
    pages.
    """
    from regrow.apps.station.state import station_status

    places = Places.at(state)
    station = record.find(places)
    found = station_status(station, places) if station is not None else None
    if as_json:
        print(json.dumps(None if found is None else found.to_json()))
    elif found is None:
        tell(f"no station runs on {places.root}; `regrow up` starts one")
    else:
        _print(places, found)


def _print(places: Places, found: StationStatus) -> None:
    from regrow.apps.station.triggers import aside

    now = time.time()
    tell(f"station of {places.root}, up since {age(now - found.station.since)}")
    table = LineTable(header_style="dim")
    for column in ("part", "state", "process", "up since", "restarts", "memory"):
        table.add_column(
            column, justify="right" if column in ("process", "restarts", "memory") else "left"
        )
    for part in found.parts:
        table.add_row(
            part.name,
            part.state,
            str(part.pid or "-"),
            age(now - part.since) if part.pid else "-",
            str(part.restarts),
            f"{part.memory / 1e6:,.0f} MB" if part.memory else "-",
        )
    PlainConsole().print(table)
    for line in found.station.pages(passwords.make(places.services).shown):
        tell(line)
    for served in found.served:
        for line in told(served, now):
            tell(line)
    for mark, lines in (
        ("next:    ", found.scheduled),
        ("events:  ", aside.lines(places)),
        ("stuck:   ", found.unhealed),
        ("runs:    ", found.running),
    ):
        for line in lines:
            tell(f"{mark}{line}")


def told(served: Serving, now: float) -> Iterator[str]:
    """Describe a server: its address, its checkpoint, the last refusal, the current problem."""
    said = served.said
    yield (
        f"serves:  {served.name}:"
        f" {said.url or served.state}{'' if said.main is None else f' {said.main.text}'}"
    )
    if said.url and said.main is None:
        yield "         waits for a checkpoint to serve"
    if said.canary is not None:
        yield f"         canary: {said.canary.text}"
    if said.refused:
        yield f"         refused {age(now - said.refused_at)} ago: {said.refused}"
    if said.trouble:
        yield f"         {said.trouble}; it is tried again"
