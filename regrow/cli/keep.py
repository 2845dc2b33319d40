"""`note`, `cp`, `mv` and `rm`: what is kept of an experiment, and under which name."""

from __future__ import annotations

import shlex
import time
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from regrow.cli import options
from regrow.cli.console import agreed
from regrow.cli.options import option
from regrow.flows.housekeeping import removal
from regrow.flows.housekeeping.copying import specification_like
from regrow.flows.housekeeping.removal import rename
from regrow.flows.recording.catch_up import write_notes
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.infra.state.yaml_file import set_values
from regrow.show.live import text
from regrow.show.live.terminal import echo
from regrow.show.views import summaries
from regrow.tasks.errors import UserError
from regrow.tasks.process import disk


def note(
    name: options.Name,
    words: Annotated[
        str, typer.Argument(metavar="TEXT", help="The note, in quotes", show_default=False)
    ] = "",
    tag: Annotated[list[str] | None, option("Give it this tag; may be repeated")] = None,
    untag: Annotated[list[str] | None, option("Take this tag away; may be repeated")] = None,
    state: options.State = None,
) -> None:
    """Add a note or tags to an experiment, also while it runs; without either, print its notes.

    Notes are kept permanently in the state, and shown wherever the experiment is: ls, show, watch,
    compare, report, MLflow.
    """
    places = Places.at(state)
    store = places.known(name)
    if changes := bool(words or tag or untag):
        notes.add(store, words, tags=tag or (), untags=untag or ())
    found = notes.read(store)
    for line in text.noted(found):
        echo(line)
    if not (found.texts or found.tags):
        echo(f"nothing is noted of {name}")
    if changes and (trouble := write_notes(places, name)) is not None:
        echo(trouble)


def cp(
    name: options.Name,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The file to write, whose name is the new experiment's [default: NAME-2.yaml]",
            show_default=False,
        ),
    ] = None,
    trial: Annotated[
        int | None,
        option("Run this trial's configuration alone again, to its end", "--trial", min=0),
    ] = None,
    changes: options.Set = None,
    state: options.State = None,
) -> None:
    """Write a specification like an experiment's, to edit and run: it begins with the best
    configuration, and its sampler learns from the trials that fit its space.
    """
    places = Places.at(state)
    taken = set(places.experiments())
    if file is None:
        files = (Path(f"{name}-{number}.yaml") for number in count(2))
        file = next(one for one in files if not one.exists() and one.stem not in taken)
    text = specification_like(places, name, file, set_values(changes or ()), trial=trial)
    if file.stem in taken:
        raise UserError(
            f"{file}: there is an experiment {file.stem!r} already; give the file another name"
        )
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise UserError(f"{file} is there already; name another file") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    echo(f"{file} is written; run it with: {shlex.join(['regrow', 'run', str(file)])}")


def mv(
    name: options.Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name that it is to have")],
    state: options.State = None,
) -> None:
    """Rename an experiment, also in MLflow. Not possible in a bucket, whose objects cannot be
    renamed, nor while it runs.
    """
    if (trouble := rename(Places.at(state), name, new)) is not None:
        echo(trouble)
    echo(f"{name} is called {new}; in its YAML file write name: {new}")


def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The experiments' names")],
    state: options.State = None,
    yes: options.Yes = False,
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
        echo(_estate(places, name))
    question = f"Remove {'it' if len(names) == 1 else f'these {len(names)}'} for good?"
    alone = "nothing was removed: there is no terminal to ask at; say it with --yes"
    if not agreed(question, yes=yes, alone=alone):
        echo("nothing was removed")
        return
    for name in names:
        removal.remove(places, name, say=echo)
        echo(f"{name} is removed")


def _estate(places: Places, name: str) -> str:
    """Describe it: 'digits: finished, 10 trials, 1.2 MB in 153 objects, last active 3 h ago'."""
    objects, size = places.storage.size(name)
    held = f"{disk.size(size)} in {objects:,} object{text.ends(objects)}"
    if places.removal_begun(name):
        return f"{name}: half-removed, {held} are left"
    history = removal.history_of(places, name)
    if history is None or history.created is None:
        return f"{name}: its log is damaged, {held}"
    trials = len(history.trials)
    last_heard = text.age(time.time() - history.t_last)
    return (
        f"{name}: {summaries.status(history, alive=False)}, {trials} trial{text.ends(trials)},"
        f" {held}, last active {last_heard} ago"
    )
