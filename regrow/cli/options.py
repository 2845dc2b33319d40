"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NameArgument = Annotated[str, typer.Argument(help="The experiment's name")]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state", help="Root of the durable state: a folder or s3://BUCKET/PREFIX [default: $REGROW_STATE or ./.regrow]",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines: JSON on standard output")]
EventsOption = Annotated[
    bool, typer.Option("--json", help="For machines: the log's events on standard output, one a line, nothing else")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and the last lines")]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--prefect-port", min=1, max=65535, help="Port of the embedded Prefect server [default: any free one]", show_default=False
    ),
]
ServerFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Folder of the server's data [default: s3 in $REGROW_HOME or ~/.local/share/regrow]", show_default=False
    ),
]
