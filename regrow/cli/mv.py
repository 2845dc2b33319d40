"""`mv`: renames an experiment."""

from __future__ import annotations

from typing import Annotated

import typer

from regrow.cli.options import NameArgument, StateOption
from regrow.flows.housekeeping.renaming import rename
from regrow.infra.state.places import Places
from regrow.show.live.terminal import tell


def mv(
    name: NameArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name that it is to have")],
    state: StateOption = None,
) -> None:
    """Rename an experiment, also in MLflow. Not possible in a bucket, whose objects cannot be
    renamed, nor while it runs.
    """
    places = Places.at(state)
    if (trouble := rename(places, name, new)) is not None:
        tell(trouble)
    tell(f"{name} is called {new}; in its YAML file write name: {new}")
