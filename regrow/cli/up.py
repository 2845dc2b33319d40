"""`up`: an S3 server of one's own, for the state of experiments. `down` ends it."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer
from rich.console import Console

from regrow.cli.options import ServerFolderOption
from regrow.infra.local import s3_server


def up(
    folder: ServerFolderOption = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=55_531, help="First of its ports [default: any free ones]", show_default=False)
    ] = None,
) -> None:
    """Start an S3 server on this machine for the state of experiments, and say how to use it."""
    place = s3_server.home(folder)
    server, new = s3_server.start(place, port=port)
    console = Console(highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    say(f"# S3 {'serves' if new else 'serves already'} at {server.endpoint}, on loopback only; its data is in {server.folder}")
    say(f"# end it with: regrow down{f' --dir {shlex.quote(str(place))}' if folder is not None else ''}")
    for name, value in {**server.environment(), "REGROW_STATE": f"s3://{server.bucket}"}.items():
        say(f"export {name}={shlex.quote(value)}")
    # These would come before the file with the server's own.
    others = ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    if foreign := [name for name in others if name in os.environ]:
        say(f"unset {' '.join(foreign)}")
