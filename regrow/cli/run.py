"""`run`: runs an experiment from its YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regrow.cli.options import (
    EventsOption,
    IncludeOption,
    PortOption,
    QuietOption,
    StateOption,
    take_along,
)
from regrow.cli.session import run_session
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError


def run(
    file: Annotated[Path, typer.Argument(help="The experiment's YAML file", readable=False)],
    name: Annotated[str | None, typer.Option(help="Another name than the file's")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Another total number of trials than the file's")
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="If it is there already: try failed trials again, from their last checkpoints",
        ),
    ] = False,
    state: StateOption = None,
    quiet: QuietOption = False,
    as_json: EventsOption = False,
    prefect_port: PortOption = None,
    on: Annotated[
        Path | None,
        typer.Option(
            "--on",
            metavar="CLUSTER",
            readable=False,
            show_default=False,
            help="A cluster's YAML file: bring it up, run there, bring the results home, end it",
        ),
    ] = None,
    include: IncludeOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --on: do not ask before it costs money")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --on: leave the cluster up")] = False,
) -> None:
    """Run the experiment that FILE describes, or resume it if it exists already."""
    take_along(include)
    if on is not None:
        from regrow.cli.on_cluster import run_on

        if prefect_port is not None:
            raise UserError(
                "--prefect-port is for this machine; `regrow cluster ui` opens the page of a run"
                " --on a cluster"
            )
        given = {
            "name": name,
            "trials": trials,
            "retry_failed": retry_failed,
            "state": state,
            "quiet": quiet,
            "as_json": as_json,
        }
        run_on(file, on, yes=yes, keep=keep, **given)
    if yes or keep:
        raise UserError("--yes and --keep go with --on CLUSTER")
    from regrow.cli.spec_file import read
    from regrow.infra.ray.scaling import with_market
    from regrow.infra.state.yaml_file import located

    spec = with_market(read(file, trials))
    try:
        if name is not None:
            spec = type(spec).parse({**spec.to_json(), "name": name})
        run_session(
            spec.name,
            spec=spec,
            places=Places.at(state or spec.state),
            trials=trials,
            quiet=quiet,
            as_json=as_json,
            prefect_port=prefect_port,
            retry_failed=retry_failed,
        )
    except SpecError as error:
        raise (error if error.where else located(error, file))  # noqa: B904 - the same error, with its location
