"""Arguments and options of several commands."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from regrow.tasks.errors import UserError


def option(help_text: str, *names: str, **given: Any) -> Any:
    """Return an option whose default is not shown, as it is None or False."""
    return typer.Option(*names, help=help_text, show_default=False, **given)


Name = Annotated[str, typer.Argument(help="The experiment's name")]
File = Annotated[Path, typer.Argument(help="The experiment's YAML file", readable=False)]
State = Annotated[
    str | None,
    option(
        "Root of the durable state: a folder or s3://BUCKET/PREFIX [default: $REGROW_STATE or"
        " ./.regrow]",
        "--state",
    ),
]
Json = Annotated[bool, option("For machines: JSON on standard output", "--json")]
Events = Annotated[
    bool,
    option("For machines: the log's events on standard output, one a line, nothing else", "--json"),
]
Quiet = Annotated[bool, option("Print nothing but errors and the last lines", "--quiet", "-q")]
Yes = Annotated[bool, option("Do not ask", "--yes", "-y")]
OtherName = Annotated[str | None, option("Another name than the file's")]
OtherTrials = Annotated[int | None, option("Another total number of trials than the file's", min=1)]
RetryFailed = Annotated[
    bool,
    option(
        "If it is there already: try failed trials again, from their last checkpoints",
        "--retry-failed",
    ),
]
Set = Annotated[
    list[str] | None,
    option(
        "Another value than the specification's, which is YAML: trials=40,"
        " space.lr.loguniform=[1e-4,1e-1]; null removes the key; may be repeated",
        "--set",
        metavar="KEY=VALUE",
    ),
]
Budget = Annotated[
    str | None,
    option(
        "How much training all trials together may do: 40 (as many steps as 40 full trainings),"
        ' "{steps: 800}" or "{hours: 4}"',
        "--budget",
        metavar="BUDGET",
    ),
]
Dollars = Annotated[
    float | None,
    option("What the experiment may cost in all, in the currency of its prices", "--dollars"),
]
Deadline = Annotated[
    str | None,
    option(
        'When all has to be saved and reported: 2026-12-04T08:00, "2026-12-04T08:00 Europe/Berlin",'
        " or 8h from the creation",
        "--deadline",
        metavar="TIME",
    ),
]
Port = Annotated[
    int | None,
    option(
        "Port of the embedded Prefect server [default: any free one]",
        "--prefect-port",
        min=1,
        max=65535,
    ),
]
Host = Annotated[
    str | None,
    option(
        "Listen there as well: a name or address of this machine, or 0.0.0.0 [default: loopback"
        " only]"
    ),
]
Include = Annotated[
    list[str] | None,
    option(
        "Send these files to the cluster although they may hold keys or passwords: certs/ca.pem,"
        " '.env'; may be repeated",
        "--include",
        metavar="PATTERN",
    ),
]
ServerFolder = Annotated[
    Path | None,
    option(
        "Folder of the server's data [default: s3 in $REGROW_HOME or ~/.local/share/regrow]",
        "--dir",
    ),
]


Gpus = Annotated[
    str | None,
    option(
        "GPUs of this machine to use, by index or UUID: 0,2 [default: those that nobody else uses]",
        "--gpus",
        metavar="IDS",
    ),
]


def take_gpus(ids: str | None) -> None:
    """Let trials on this machine use these GPUs alone. Raises UserError for what is no GPU here."""
    if ids is None:
        return
    from regrow.infra.machine import gpus
    from regrow.tasks.process.gpus import DEVICES

    if (os.environ.get("RAY_ADDRESS") or "local") != "local":
        raise UserError(
            f"--gpus {ids} is for a cluster of this machine's own; start the nodes of the one at"
            " RAY_ADDRESS with CUDA_VISIBLE_DEVICES"
        )
    os.environ[DEVICES] = gpus.chosen(ids, gpus.found())


def include_in_uploads(patterns: list[str] | None) -> None:
    """Send matching files to clusters although they would be excluded as confidential."""
    from regrow.infra.machine.confidential import INCLUDE, included

    if patterns:
        os.environ[INCLUDE] = os.pathsep.join([*included(), *patterns])


def with_limits(
    changes: list[str] | None, budget: str | None, dollars: float | None, deadline: str | None
) -> list[str]:
    """Return the values of `--set` with those of --budget, --dollars and --deadline."""
    moment = None if deadline is None else json.dumps(deadline)
    limits = {"budget": budget, "stop.dollars": dollars, "stop.deadline": moment}
    return [*(changes or ()), *(f"{key}={one}" for key, one in limits.items() if one is not None)]
