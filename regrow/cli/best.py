"""`best`: prints the best configuration of an experiment, and saves its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from regrow.cli.console import damage_told_last
from regrow.cli.options import JsonOption, NameArgument, StateOption, option
from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.show.live import text
from regrow.show.live.terminal import tell
from regrow.show.views import summaries
from regrow.tasks.errors import UserError

STATE_DICTS = "state_dicts.pt"
"""File for `torch.load`, beside the files of the checkpoint."""


def best(
    name: NameArgument,
    state: StateOption = None,
    as_json: JsonOption = False,
    save: Annotated[
        Path | None, option("Write its checkpoint's files into this new folder")
    ] = None,
    schedule: Annotated[
        bool,
        option(
            "Print the schedule of configurations that led to it, to be replayed by one trial",
            "--schedule",
        ),
    ] = False,
) -> None:
    """Print the best configuration, ready to paste."""
    places = Places.at(state)
    with damage_told_last() as noted:
        history = replay(places.known(name), name, on_damage=noted)
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
                tell(line)


def _save_checkpoint(places: Places, name: str, view: dict[str, Any] | None, folder: Path) -> None:
    from regrow.tasks.checkpoint.saving import restore_one

    if view is None or view["checkpoint"] is None:
        raise UserError(
            f"--save: the best trial of {name!r} has no checkpoint; report with checkpoint=... in"
            " the trainable"
        )
    if folder.exists():
        raise UserError(f"--save: {folder} exists already; name a folder that is to be made")
    restore_one(places.known(name), view["checkpoint"], folder)
    saved = folder / ".metadata", folder / STATE_DICTS
    if [file.exists() for file in saved] == [True, False]:  # as rg.torch.State saves
        _save_state_dicts(folder)


def _save_state_dicts(folder: Path) -> None:
    """Write the parts of a checkpoint of `rg.torch.State` as one file for `torch.load`."""
    file = folder / STATE_DICTS
    try:
        from regrow import torch  # takes 2 s

        parts = torch.export(folder, file)
    except UserError as error:  # PyTorch is not installed, or another program wrote the checkpoint
        tell(f"{STATE_DICTS} is not written: {error}", error=True)
        return
    tell(f"for torch.load: {file} ({', '.join(parts)})", error=True)
