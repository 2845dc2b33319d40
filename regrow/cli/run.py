"""`run`: runs an experiment from its YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from regrow.cli.options import (
    BudgetOption,
    DeadlineOption,
    DollarsOption,
    EventsOption,
    FileArgument,
    GpusOption,
    IncludeOption,
    OtherNameOption,
    OtherTrialsOption,
    PortOption,
    QuietOption,
    RetryFailedOption,
    SetOption,
    StateOption,
    option,
    take_along,
    take_gpus,
    with_limits,
)
from regrow.cli.session import run_session
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError


def run(
    file: FileArgument,
    name: OtherNameOption = None,
    trials: OtherTrialsOption = None,
    changes: SetOption = None,
    budget: BudgetOption = None,
    dollars: DollarsOption = None,
    deadline: DeadlineOption = None,
    retry_failed: RetryFailedOption = False,
    state: StateOption = None,
    quiet: QuietOption = False,
    as_json: EventsOption = False,
    prefect_port: PortOption = None,
    gpus: GpusOption = None,
    on: Annotated[
        Path | None,
        option(
            "A cluster's YAML file: start agents there, and follow the experiment",
            metavar="CLUSTER",
            readable=False,
        ),
    ] = None,
    include: IncludeOption = None,
    yes: Annotated[
        bool, option("With --on: do not ask before it costs money", "--yes", "-y")
    ] = False,
) -> None:
    """Run the experiment that FILE describes, or resume it if it exists already."""
    take_along(include)
    changes = with_limits(changes, budget, dollars, deadline)
    if on is not None and gpus is not None:
        raise UserError("--gpus is for this machine; a cluster's file says which machines it has")
    take_gpus(gpus)
    if on is not None:
        from regrow.cli.cluster import run_on

        if prefect_port is not None:
            raise UserError(
                "--prefect-port is for this machine; `regrow ui` opens the page of a run --on a"
                " cluster"
            )
        run_on(
            file,
            on,
            yes=yes,
            name=name,
            trials=trials,
            changes=changes,
            retry_failed=retry_failed,
            state=state,
            quiet=quiet,
            as_json=as_json,
        )
    if yes:
        raise UserError("--yes goes with --on CLUSTER")
    from regrow.cli.spec_file import located_in, named, read

    spec = read(file, trials, changes=changes)
    with located_in(file):
        spec = named(spec, name)
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
