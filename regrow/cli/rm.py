"""`rm`: removes experiments permanently."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from regrow.cli.options import StateOption
from regrow.flows.housekeeping import removal
from regrow.infra.state.places import Places
from regrow.show.live import text
from regrow.show.live.terminal import PlainConsole
from regrow.show.views import summaries
from regrow.tasks.errors import UserError
from regrow.tasks.process import disk


def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The experiments' names")],
    state: StateOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
) -> None:
    """Remove experiments permanently: log, checkpoints, output of trials, and their runs in MLflow
    and Prefect.

    It asks first, and refuses to remove a running experiment. If it is interrupted, `ls` shows what
    is half-removed, and a second `rm` removes the rest.
    """
    places = Places.at(state)
    console = PlainConsole(soft_wrap=True)
    names = list(dict.fromkeys(names))
    for name in names:
        places.has(name)
        removal.refuse_running(places, name, "removed")
    for name in names:
        console.print(_estate(places, name), markup=False)
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(
                "nothing was removed: there is no terminal to ask at; say it with --yes"
            )
        if not typer.confirm(
            f"Remove {'it' if len(names) == 1 else f'these {len(names)}'} for good?"
        ):
            console.print("nothing was removed", markup=False)
            return
    for name in names:
        removal.remove(places, name, say=lambda line: console.print(line, markup=False))
        console.print(f"{name} is removed", markup=False)


def _estate(places: Places, name: str) -> str:
    """Describe it: 'digits: finished, 10 trials, 1.2 MB in 153 objects, last heard of 3
    days ago'.
    """
    objects, size = places.storage.size(name)
    held = f"{disk.size(size)} in {objects:,} object{text.ends(objects)}"
    if places.removal_begun(name):
        return f"{name}: half-removed, {held} are left"
    history = removal.history_of(places, name)
    if history is None or history.created is None:
        return f"{name}: its log is damaged, {held}"
    count = len(history.trials)
    said = text.age(time.time() - history.t_last)
    return (
        f"{name}: {summaries.status(history, alive=False)}, {count} trial{text.ends(count)},"
        f" {held}, last heard of {said} ago"
    )
