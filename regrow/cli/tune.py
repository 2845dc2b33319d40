"""`tune`: a script that was written for Ray Tune, as it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from regrow.cli.exit_codes import ExitCode
from regrow.cli.options import QuietOption, StateOption

SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""What stands after the script is the script's."""


def tune(
    script: Annotated[Path, typer.Argument(help="A Python script that uses Ray Tune", readable=False)],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Another name of the experiment than the script's")] = None,
    state: StateOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run SCRIPT, written for Ray Tune, as it is: its trials are durable, and the same command goes on after a loss."""
    from regrow.tune.script import ScriptFailed, run_script

    try:
        run_script(script, arguments or [], name=name, state=state, quiet=quiet)
    except ScriptFailed as error:
        sys.stderr.write(str(error))
        sys.exit(ExitCode.FAILED)
