"""`cp`: writes a new specification that begins with an experiment's best configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regrow.cli.options import NameArgument, SetOption, StateOption, option
from regrow.flows.housekeeping.copying import specification_like
from regrow.infra.state.places import Places
from regrow.infra.state.yaml_file import set_values
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError


def cp(
    name: NameArgument,
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
    changes: SetOption = None,
    state: StateOption = None,
) -> None:
    """Write a specification like an experiment's, to edit and run: it begins with the best
    configuration, and its sampler learns from the trials that fit its space.
    """
    places = Places.at(state)
    file = _free(places, name) if file is None else file
    text = specification_like(places, name, file, set_values(changes or ()), trial=trial)
    if file.stem in places.experiments():
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
    tell(f"{file} is written; run it with: regrow run {file}")


def _free(places: Places, name: str) -> Path:
    """Return NAME-2.yaml, or the next number with neither a file nor an experiment."""
    taken = set(places.experiments())
    number = 2
    while Path(f"{name}-{number}.yaml").exists() or f"{name}-{number}" in taken:
        number += 1
    return Path(f"{name}-{number}.yaml")
