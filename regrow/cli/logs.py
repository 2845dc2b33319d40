"""`logs`: prints what a trial printed and logged."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from regrow.cli import options
from regrow.cli.options import option
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.show.live.terminal import echo
from regrow.show.views.trial_logs import TrialLogs
from regrow.tasks.errors import UserError
from regrow.tasks.output.parts import OutputLine

LAST_LINES, LAST_BYTES = 40, 100_000
"""Maximum lines and bytes of a part's log that are printed."""
LOOK_SECONDS = 0.5
REMOTE_LOOK_SECONDS = 2.0
"""Longer for a bucket, where each poll makes requests, which cost money."""


def logs(
    name: Annotated[
        str | None, typer.Argument(help="The experiment's name", show_default=False)
    ] = None,
    trial: Annotated[
        int | None, typer.Argument(min=0, help="The trial's number", show_default=False)
    ] = None,
    attempt: Annotated[int | None, option("Only this attempt [default: all]", min=1)] = None,
    follow: Annotated[
        bool, option("Continue as more comes, until the trial has ended", "--follow", "-f")
    ] = False,
    station: Annotated[
        bool,
        option("What the station's parts printed instead; NAME: only of that part", "--station"),
    ] = False,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Print what a trial printed and logged, attempt by attempt."""
    places = Places.at(state)
    if station:
        of_trials = {
            "TRIAL": trial is not None,
            "--attempt": attempt is not None,
            "--follow": follow,
            "--json": as_json,
        }
        if given := [key for key, is_given in of_trials.items() if is_given]:
            raise UserError(f"{given[0]} is for a trial's logs; leave it or --station out")
        _of_station(places, name)
        return
    if name is None or trial is None:
        raise UserError(
            "name the experiment and the trial, as in `regrow logs digits 3`, or give --station"
        )
    found = TrialLogs(places.known(name), trial, attempt)
    while True:
        # Checked before the read, so that this read finds everything that an experiment that has
        # ended by then wrote.
        goes_on = follow and runs(places, name)
        for number, line in found.new(time.time() if goes_on else None):
            echo(
                json.dumps({"attempt": number, **msgspec.to_builtins(line)})
                if as_json
                else _text(line),
                flush=follow,
            )
        if found.over or found.damage is not None or not goes_on:
            break
        time.sleep(REMOTE_LOOK_SECONDS if places.storage.metered else LOOK_SECONDS)
    if found.damage is not None:
        raise found.damage
    if not found.lines and not as_json:
        echo(f"trial {trial} printed nothing" + ("" if found.over else " so far"))


def _of_station(places: Places, part: str | None) -> None:
    """Print the last lines of each part's log, or of one part's."""
    from regrow.infra.state.station_record import folder_of

    files = {file.stem: file for file in sorted((folder_of(places) / "logs").glob("*.log"))}
    if part is not None and part not in files:
        raise UserError(
            f"the station of {places.root} has no part {part!r}; it has"
            f" {', '.join(files) or 'none'}"
        )
    if not files:
        echo(f"no station has run on {places.root}; `regrow up` starts one")
    for name, file in files.items():
        if part not in (None, name):
            continue
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        echo(f"--- {name}: {file}")
        for line in lines:
            echo(line)


def _text(line: OutputLine) -> str:
    text = line.text
    if line.stream == "regrow":
        return f"--- {text}"
    if line.stream == "traceback":
        return text
    mark = {"stdout": "out", "stderr": "err"}.get(
        line.stream, f"{line.level.lower()} {line.logger}:"
    )
    return f"{datetime.fromtimestamp(line.t).strftime('%H:%M:%S.%f')[:-3]} {mark} {text}"  # noqa: DTZ006 - in the reader's local time
