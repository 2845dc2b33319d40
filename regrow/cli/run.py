"""`run` and `resume`: run an experiment from its YAML file, or continue one that has a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from regrow.cli import options
from regrow.cli.options import option, take_along, take_gpus, with_limits
from regrow.cli.session import run_session
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError


def run(
    file: options.File,
    name: options.OtherName = None,
    trials: options.OtherTrials = None,
    changes: options.Set = None,
    budget: options.Budget = None,
    dollars: options.Dollars = None,
    deadline: options.Deadline = None,
    retry_failed: options.RetryFailed = False,
    state: options.State = None,
    quiet: options.Quiet = False,
    as_json: options.Events = False,
    prefect_port: options.Port = None,
    gpus: options.Gpus = None,
    on: Annotated[
        Path | None,
        option(
            "A cluster's YAML file: bring it up, run there, bring the results home, end it",
            metavar="CLUSTER",
            readable=False,
        ),
    ] = None,
    include: options.Include = None,
    yes: Annotated[
        bool, option("With --on: do not ask before it costs money", "--yes", "-y")
    ] = False,
    keep: Annotated[bool, option("With --on: leave the cluster up", "--keep")] = False,
    agents: Annotated[
        bool, option("With --on: as agents, without a head, on Kubernetes and AWS", "--agents")
    ] = False,
) -> None:
    """Run the experiment that FILE describes, or resume it if it exists already."""
    take_along(include)
    changes = with_limits(changes, budget, dollars, deadline)
    if on is not None and gpus is not None:
        raise UserError("--gpus is for this machine; a cluster's file says which machines it has")
    take_gpus(gpus)
    given: dict[str, Any] = {
        "trials": trials,
        "quiet": quiet,
        "as_json": as_json,
        "retry_failed": retry_failed,
    }
    if on is not None:
        from regrow.cli.cluster import run_on

        if prefect_port is not None:
            raise UserError(
                "--prefect-port is for this machine; `regrow cluster ui` opens the page of a run"
                " --on a cluster"
            )
        given |= {"name": name, "changes": changes, "state": state}
        run_on(file, on, yes=yes, keep=keep, agents=agents, **given)
    if yes or keep or agents:
        raise UserError("--yes, --keep and --agents go with --on CLUSTER")
    from regrow.cli.spec_file import located_in, named, read
    from regrow.infra.ray.scaling import with_market

    spec = with_market(read(file, trials, changes=changes))
    with located_in(file):
        spec = named(spec, name)
        places = Places.at(state or spec.state)
        run_session(places, spec.name, spec=spec, prefect_port=prefect_port, **given)


def resume(
    name: options.Name,
    trials: Annotated[int | None, option("Raise the total number of trials to this", min=1)] = None,
    changes: options.Set = None,
    budget: options.Budget = None,
    dollars: options.Dollars = None,
    deadline: options.Deadline = None,
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
    state: options.State = None,
    quiet: options.Quiet = False,
    as_json: options.Events = False,
    prefect_port: options.Port = None,
    gpus: options.Gpus = None,
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
        places,
        name,
        spec=spec,
        trials=trials,
        quiet=quiet,
        as_json=as_json,
        prefect_port=prefect_port,
        retry_failed=retry_failed,
    )
