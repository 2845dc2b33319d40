"""`best`: prints the best configuration of an experiment, and saves its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regrow.cli.console import plain_console
from regrow.cli.damage import damage_told_last
from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.show.live import text
from regrow.show.live.terminal import tell
from regrow.show.views import summaries
from regrow.tasks.errors import UserError


def best(
    name: NameArgument,
    state: StateOption = None,
    as_json: JsonOption = False,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", help="Write its checkpoint's files into this new folder", show_default=False
        ),
    ] = None,
    schedule: Annotated[
        bool,
        typer.Option(
            "--schedule",
            help="Print the schedule of configurations that led to it, to be replayed by one trial",
        ),
    ] = False,
) -> None:
    """Print the best configuration, ready to paste."""
    places = Places.at(state)
    with damage_told_last() as noted:
        history = replay(places.known(name), name, on_damage=noted)
        _print(history, places, name, as_json=as_json, save=save, schedule=schedule)


def _print(
    history: History, places: Places, name: str, *, as_json: bool, save: Path | None, schedule: bool
) -> None:
    view = summaries.best(history)
    if save is not None:
        _save_checkpoint(places, name, view, save)
    if schedule and view is not None:
        view = summaries.schedule(history, view["trial"], view["step"])
    if as_json:
        print(json.dumps(view))
    elif schedule and view is not None:
        for key, written in view.items():
            tell(f"{key}: {text.pasted(written)}")
    elif view is None:
        tell(f"no trial of {name} has reported anything yet")
    else:
        for line in text.best(history, places):
            plain_console().print(line, markup=False, soft_wrap=True)


def _save_checkpoint(places: Places, name: str, view: dict[str, Any] | None, folder: Path) -> None:
    from regrow.result import save_checkpoint

    if view is None or view["checkpoint"] is None:
        raise UserError(
            f"--save: the best trial of {name!r} has no checkpoint; report with checkpoint=... in"
            " the trainable"
        )
    if folder.exists():
        raise UserError(f"--save: {folder} exists already; name a folder that is to be made")
    save_checkpoint(places.known(name), view["checkpoint"], folder)
