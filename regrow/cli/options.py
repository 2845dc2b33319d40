"""Arguments and options of several commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

NameArgument = Annotated[str, typer.Argument(help="The experiment's name")]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        help=(
            "Root of the durable state: a folder or s3://BUCKET/PREFIX [default: $REGROW_STATE or"
            " ./.regrow]"
        ),
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines: JSON on standard output")]
EventsOption = Annotated[
    bool,
    typer.Option(
        "--json", help="For machines: the log's events on standard output, one a line, nothing else"
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors and the last lines")
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--prefect-port",
        min=1,
        max=65535,
        help="Port of the embedded Prefect server [default: any free one]",
        show_default=False,
    ),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="PATTERN",
        show_default=False,
        help=(
            "Send these files to the cluster although they may hold keys or passwords:"
            " certs/ca.pem, '.env'; may be repeated"
        ),
    ),
]
ServerFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="Folder of the server's data [default: s3 in $REGROW_HOME or ~/.local/share/regrow]",
        show_default=False,
    ),
]


def take_along(patterns: list[str] | None) -> None:
    """Send matching files to clusters although they would be excluded as confidential."""
    from regrow.infra.machine.confidential import INCLUDE, included

    if patterns:
        os.environ[INCLUDE] = os.pathsep.join([*included(), *patterns])
