"""`logs`: what a trial printed and logged."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from regrow.cli.options import JsonOption, StateOption
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.infra.views.trial_logs import TrialLogs
from regrow.tasks.errors import UserError
from regrow.tasks.output import Line
from regrow.tasks.traces import printable

LAST_LINES, LAST_BYTES = 40, 100_000
"""Of a part's log."""
LOOK_SECONDS = 0.5
REMOTE_LOOK_SECONDS = 2.0
"""A look takes requests, which cost money where the state is in a bucket."""


def logs(
    name: Annotated[str | None, typer.Argument(help="The experiment's name", show_default=False)] = None,
    trial: Annotated[int | None, typer.Argument(min=0, help="The trial's number", show_default=False)] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt [default: all]", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more comes, until the trial has ended")] = False,
    station: Annotated[
        bool, typer.Option("--station", help="What the station's parts printed instead; NAME: only of that part")
    ] = False,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a trial printed and logged, attempt by attempt."""
    places = Places.at(state)
    if station:
        _of_station(places, name)
        return
    if name is None or trial is None:
        raise UserError("name the experiment and the trial, as in `regrow logs digits 3`, or give --station")
    found = TrialLogs(places.known(name), trial, attempt)
    while True:
        # Asked before the look: what an experiment that is over by then has written is seen by this look.
        goes_on = follow and runs(places, name)
        for number, line in found.new(time.time() if goes_on else None):
            print(_json(number, line) if as_json else _text(line), flush=follow)
        if found.over or not goes_on:
            break
        time.sleep(REMOTE_LOOK_SECONDS if places.remote else LOOK_SECONDS)
    if not found.lines and not as_json:
        print(f"trial {trial} printed nothing" + ("" if found.over else " so far"))


def _of_station(places: Places, part: str | None) -> None:
    """The last lines of each part's log, or of one part's."""
    from regrow.station.record import folder_of

    files = {file.stem: file for file in sorted((folder_of(places) / "logs").glob("*.log"))}
    if part is not None and part not in files:
        raise UserError(f"the station of {places.root} has no part {part!r}; it has {', '.join(files) or 'none'}")
    for name, file in files.items():
        if part not in (None, name):
            continue
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        print(f"--- {name}: {file}")
        for line in lines:
            print(printable(line))


def _json(attempt: int, line: Line) -> str:
    return json.dumps({"attempt": attempt, **msgspec.to_builtins(line)})


def _text(line: Line) -> str:
    """A line for people; what would steer their terminal is shown as text."""
    text = printable(line.text)
    if line.stream == "regrow":
        return f"--- {text}"
    if line.stream == "traceback":
        return text
    mark = {"stdout": "out", "stderr": "err"}.get(line.stream, f"{line.level.lower()} {printable(line.logger)}:")
    return f"{datetime.fromtimestamp(line.t).strftime('%H:%M:%S.%f')[:-3]} {mark} {text}"  # noqa: DTZ006 - the reader's own time
