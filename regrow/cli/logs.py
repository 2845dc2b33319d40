"""`logs`: what a trial printed and logged."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.infra.views.trial_logs import TrialLogs
from regrow.tasks.output import Line
from regrow.tasks.traces import printable

LOOK_SECONDS = 0.5
REMOTE_LOOK_SECONDS = 2.0
"""A look takes requests, which cost money where the state is in a bucket."""


def logs(
    name: NameArgument,
    trial: Annotated[int, typer.Argument(min=0, help="The trial's number")],
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt [default: all]", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more comes, until the trial has ended")] = False,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a trial printed and logged, attempt by attempt."""
    places = Places.at(state)
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
