"""`resume`: continues an experiment that has a log already."""

from __future__ import annotations

from typing import Annotated

import typer

from regrow.cli.options import EventsOption, NameArgument, PortOption, QuietOption, StateOption
from regrow.cli.session import run_session
from regrow.infra.state.places import Places


def resume(
    name: NameArgument,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Raise the total number of trials to this")
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="Try failed trials again, from their last checkpoints"),
    ] = False,
    state: StateOption = None,
    quiet: QuietOption = False,
    as_json: EventsOption = False,
    prefect_port: PortOption = None,
) -> None:
    """Resume an experiment that was interrupted, stopped or lost its driver."""
    run_session(
        name,
        spec=None,
        places=Places.at(state),
        trials=trials,
        quiet=quiet,
        as_json=as_json,
        prefect_port=prefect_port,
        retry_failed=retry_failed,
    )
