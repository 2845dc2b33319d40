"""`resume`: continues an experiment that has a log already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from regrow.cli.options import (
    BudgetOption,
    DeadlineOption,
    DollarsOption,
    EventsOption,
    GpusOption,
    NameArgument,
    PortOption,
    QuietOption,
    SetOption,
    StateOption,
    option,
    take_gpus,
    with_limits,
)
from regrow.cli.session import run_session
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError


def resume(
    name: NameArgument,
    trials: Annotated[int | None, option("Raise the total number of trials to this", min=1)] = None,
    changes: SetOption = None,
    budget: BudgetOption = None,
    dollars: DollarsOption = None,
    deadline: DeadlineOption = None,
    code: Annotated[
        Path | None,
        option(
            "Folder of the code [default: the recorded one, else the current folder, else the"
            " snapshot in the state]",
            "--code",
            metavar="FOLDER",
        ),
    ] = None,
    retry_failed: Annotated[
        bool, option("Try failed trials again, from their last checkpoints", "--retry-failed")
    ] = False,
    state: StateOption = None,
    quiet: QuietOption = False,
    as_json: EventsOption = False,
    prefect_port: PortOption = None,
    gpus: GpusOption = None,
) -> None:
    """Resume an experiment that was interrupted, stopped or lost its driver."""
    take_gpus(gpus)
    places, spec = Places.at(state), None
    changes = with_limits(changes, budget, dollars, deadline)
    if changes or code is not None:
        from regrow.infra.state.spec_file import changed_spec
        from regrow.infra.state.yaml_file import set_values

        given = set_values(changes)
        if code is not None:
            if not code.is_dir():
                raise UserError(f"--code {code}: there is no such folder")
            given["working_dir"] = str(code.resolve())
        spec = changed_spec(places, name, given)
    run_session(
        name,
        spec=spec,
        places=places,
        trials=trials,
        quiet=quiet,
        as_json=as_json,
        prefect_port=prefect_port,
        retry_failed=retry_failed,
    )
