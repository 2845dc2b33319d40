"""`best`: the best configuration of an experiment, and its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from regrow.cli.console import plain_console
from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.infra.views import summaries
from regrow.live import text
from regrow.tasks.errors import UserError


def best(
    name: NameArgument,
    state: StateOption = None,
    as_json: JsonOption = False,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write its checkpoint's files into this new folder", show_default=False)
    ] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Print the schedule of configurations that led to it, to be replayed by one trial")
    ] = False,
) -> None:
    """Print the best configuration, ready to paste."""
    places = Places.at(state)
    history = replay(places.known(name), name)
    view = summaries.best(history)
    if save is not None:
        _save_checkpoint(places, name, view, save)
    if schedule and view is not None:
        view = summaries.schedule(history, view["trial"], view["step"])
    if as_json:
        print(json.dumps(view))
    elif schedule and view is not None:
        for key, written in view.items():
            print(f"{key}: {text.pasted(written)}")
    elif view is None:
        print(f"no trial of {name} has reported anything yet")
    else:
        for line in text.best(history, places):
            plain_console().print(line, markup=False, soft_wrap=True)


def _save_checkpoint(places: Places, name: str, view: dict[str, Any] | None, folder: Path) -> None:
    from regrow.result import save_checkpoint

    if view is None or view["checkpoint"] is None:
        raise UserError(f"--save: the best trial of {name!r} has no checkpoint; report with checkpoint=... in the trainable")
    if folder.exists():
        raise UserError(f"--save: {folder} exists already; name a folder that is to be made")
    save_checkpoint(places.known(name), view["checkpoint"], folder)
