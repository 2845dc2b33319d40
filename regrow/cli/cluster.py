"""`regrow cluster`: the single steps of clusters that a file describes; `regrow run --on`, whose
`run_on` is here, does all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from regrow.cli import on_agents, options
from regrow.cli.console import say
from regrow.cli.help import GroupedCommands
from regrow.cli.options import option, take_along
from regrow.infra.state.places import Places
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.flows.agents import RunRequest
    from regrow.infra.clusters.description import Cluster

cluster = typer.Typer(
    name="cluster",
    no_args_is_help=True,
    help="Clusters of machines that a file describes.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    cls=GroupedCommands,
)
ClusterFile = Annotated[Path, typer.Argument(help="The cluster's YAML file", readable=False)]


def order(
    cluster: Cluster,
    file: Path,
    *,
    name: str | None,
    trials: int | None,
    state: str | None,
    changes: Sequence[str] | None = None,
    **others: bool,
) -> RunRequest:
    """Return the order of an experiment for a cluster. Raises UserError and SpecError for errors
    that can be found before it starts. `others`: of `RunRequest`.
    """
    from regrow.apps.serving import station_registration
    from regrow.cli.spec_file import located_in, named, read
    from regrow.flows.agents import RunRequest, check_state
    from regrow.flows.checks import check_search, precheck

    spec = read(file, trials, changes=changes)
    if cluster.store_prices is not None and spec.store_prices is None:
        prices = json.dumps(cluster.store_prices.model_dump(exclude_defaults=True))
        changes = [*(changes or ()), f"store_prices={prices}"]
        spec = read(file, trials, changes=changes)
    places = Places.at(state or spec.state)
    with located_in(file):
        spec = named(spec, name)
        check_search(spec)
        precheck(spec)
        station_registration.checked(spec, places)
        if not state and not os.environ.get("REGROW_STATE"):
            check_state(places, cluster, "state")
    check_state(places, cluster, "--state")
    return RunRequest(
        spec=spec,
        file=file,
        places=places,
        name=name,
        trials=trials,
        changes=tuple(changes or ()),
        **others,
    )


def run_on(file: Path, cluster_file: Path, *, yes: bool, **options: Any) -> NoReturn:
    """Start the agents that are missing, follow the experiment, and exit with its code.

    `options`: those of `order`.
    """
    run = on_agents.opened(cluster_file)
    what = order(run.cluster, file, **options)
    say_served(what)
    on_agents.run_on(run, what, yes=yes)


def say_served(what: RunRequest) -> None:
    """Register the experiment with this machine's station, if it is to be served."""
    from regrow.apps.serving import station_registration

    for line in station_registration.of_experiment(what.places, what.spec):
        say(line)


@cluster.command()
def status(
    file: ClusterFile,
    as_json: Annotated[bool, option("For machines: JSON", "--json")] = False,
) -> None:
    """Show the agents of a cluster that run, wait or are missing."""
    on_agents.status(on_agents.opened(file), as_json=as_json)


@cluster.command()
def submit(
    file: ClusterFile,
    experiment: options.File,
    name: options.OtherName = None,
    trials: options.OtherTrials = None,
    state: options.State = None,
    include: options.Include = None,
    yes: options.Yes = False,
) -> None:
    """Start the agents of an experiment, without following it."""
    take_along(include)
    run = on_agents.opened(file)
    what = order(run.cluster, experiment, name=name, trials=trials, state=state)
    on_agents.submit(run, what, yes=yes)
    say_served(what)


@cluster.command()
def attach(
    file: ClusterFile, experiment: Annotated[str, typer.Argument(help="The experiment's name")]
) -> None:
    """Follow an experiment that agents run, from its beginning. Ctrl-C leaves it running."""
    on_agents.attach(on_agents.opened(file), experiment)


@cluster.command()
def logs(file: ClusterFile) -> None:
    """Print the last lines of what agents printed; in a cloud, of those that could not take
    part.
    """
    on_agents.logs(on_agents.opened(file))


@cluster.command()
def down(file: ClusterFile, yes: options.Yes = False) -> None:
    """End the agents of a cluster with their machines, and check that nothing of it is left."""
    on_agents.down(on_agents.opened(file), yes=yes)


@cluster.command()
def check(file: ClusterFile) -> None:
    """Check a cluster file for mistakes, without starting anything."""
    on_agents.opened(file).engine.check()
    echo(f"{file}: no mistake was found")


@cluster.command()
def export(
    file: ClusterFile,
    experiment: Annotated[
        Path | None,
        typer.Argument(help="The experiment's YAML file; not with --sky", readable=False),
    ] = None,
    name: options.OtherName = None,
    state: options.State = None,
    folder: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write into")
    ] = Path(),
    sky: Annotated[bool, option("A task of SkyPilot instead", "--sky")] = False,
) -> None:
    """Write what agents are started by, for use without regrow: on Slurm, print the file for
    sbatch; over SSH, a unit of systemd and its script; on Kubernetes, manifests; in a cloud, a
    script and the requests that it sends.
    """
    run = on_agents.opened(file)
    if sky:
        from regrow.infra.clusters.clouds import sky as skypilot

        files: dict[str, bytes] | None = skypilot.files(run.cluster)
    elif experiment is None:
        raise UserError(f"name the experiment's file: regrow cluster export {file} EXPERIMENT")
    else:
        what = order(run.cluster, experiment, name=name, trials=None, state=state)
        files = on_agents.export(run, what)
    for called, content in (files or {}).items():
        into = folder / called
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if into.exists() and into.read_bytes() != content:
                raise UserError(
                    f"{into} is there already, with something else in it; give another folder with"
                    " -o, or remove it"
                )
            into.write_bytes(content)
        except OSError as error:
            raise UserError(
                f"--output: {into} cannot be written ({error.strerror}); give another folder"
            ) from None
        echo(into)


@cluster.command()
def schema() -> None:
    """Print the JSON schema of a cluster file, for editors."""
    from regrow.infra.clusters.cluster_file import schema as published

    print(json.dumps(published(), indent=2))
