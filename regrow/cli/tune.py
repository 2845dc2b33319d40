"""`tune`: runs an unchanged Ray Tune script."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from regrow.cli import options
from regrow.cli.exit_codes import ExitCode
from regrow.cli.options import option
from regrow.show.live.terminal import echo

SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Arguments after the script are passed to it."""


def tune(
    script: Annotated[
        Path, typer.Argument(help="A Python script that uses Ray Tune", readable=False)
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Its own arguments; regrow's options come before SCRIPT", show_default=False
        ),
    ] = None,
    name: Annotated[str | None, option("Another name of the experiment than the script's")] = None,
    state: options.State = None,
    quiet: options.Quiet = False,
    as_json: options.Events = False,
) -> None:
    """Run SCRIPT, written for Ray Tune, unchanged: its trials are durable, and the same command
    resumes it after a loss.
    """
    from regrow.cli.run import station_of
    from regrow.integrations.tune.script import ScriptFailed, run_script
    from regrow.show.live.terminal import only_events

    try:
        with only_events() if as_json else nullcontext() as events:
            run_script(
                script,
                arguments or [],
                name=name,
                state=state,
                quiet=quiet,
                events=events,
                station_of=station_of,
            )
    except ScriptFailed as error:
        echo(error, error=True, end="")
        sys.exit(ExitCode.FAILED)
