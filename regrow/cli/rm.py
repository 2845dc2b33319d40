"""`rm`: removes experiments permanently."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from regrow.cli.console import agreed
from regrow.cli.options import StateOption, YesOption
from regrow.flows.housekeeping import removal
from regrow.infra.state.places import Places
from regrow.show.live import text
from regrow.show.live.terminal import tell
from regrow.show.views import summaries
from regrow.tasks.process import disk


def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The experiments' names")],
    state: StateOption = None,
    yes: YesOption = False,
) -> None:
    """Remove experiments permanently: log, checkpoints, output of trials, and their runs in MLflow
    and Prefect.

    It asks first, and refuses to remove a running experiment. If it is interrupted, `ls` shows what
    is half-removed, and a second `rm` removes the rest.
    """
    places = Places.at(state)
    names = list(dict.fromkeys(names))
    for name in names:
        places.has(name)
        removal.refuse_running(places, name, "removed")
    for name in names:
        tell(_estate(places, name))
    question = f"Remove {'it' if len(names) == 1 else f'these {len(names)}'} for good?"
    alone = "nothing was removed: there is no terminal to ask at; say it with --yes"
    if not agreed(question, yes=yes, alone=alone):
        tell("nothing was removed")
        return
    for name in names:
        removal.remove(places, name, say=tell)
        tell(f"{name} is removed")


def _estate(places: Places, name: str) -> str:
    """Describe it: 'digits: finished, 10 trials, 1.2 MB in 153 objects, last heard of 3 h ago'."""
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
