"""`regrow cluster`: the single steps of clusters that a file describes; `regrow run --on`, whose
`run_on` is here, does all of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer

from regrow.cli import on_agents, options
from regrow.cli.console import confirm, say
from regrow.cli.exit_codes import ExitCode
from regrow.cli.help import Grouped
from regrow.cli.options import option, take_along
from regrow.infra.state.places import Places
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.flows.remote import ClusterRun, RunRequest
    from regrow.infra.clusters.agents import Agent
    from regrow.infra.clusters.description import Cluster

cluster = typer.Typer(
    name="cluster",
    no_args_is_help=True,
    help="Clusters of machines that a file describes.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    cls=Grouped,
)
ClusterFile = Annotated[Path, typer.Argument(help="The cluster's YAML file", readable=False)]


def show(text: str) -> None:
    tell(text, end="", flush=True)


def opened(file: Path) -> ClusterRun:
    """Return the cluster that a file describes. Raises UserError and SpecError."""
    from regrow.flows.remote import ClusterRun
    from regrow.infra.clusters.cluster_file import read_cluster
    from regrow.infra.clusters.description import WithHead

    cluster = read_cluster(file)
    if not isinstance(cluster, WithHead):
        raise UserError(
            f"{file} says on: {cluster.on}, where nothing is brought up before an experiment:"
            f" `regrow run EXPERIMENT --on {file}` starts its agents, `regrow ui` opens its pages"
        )
    return ClusterRun(cluster=cluster, say=say, show=show, file=file)


def agents_of(file: Path) -> list[Agent]:
    """Return the agents of a cluster that may have a head, too."""
    run_by, _ = on_agents.maybe(file)
    return [] if run_by is None else run_by.engine.agents()


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
    from regrow.flows.checks import check_search, precheck
    from regrow.flows.remote import RunRequest, check_state

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


def run_on(
    file: Path, cluster_file: Path, *, yes: bool, keep: bool, agents: bool, **options: Any
) -> NoReturn:
    """Start a cluster, run an experiment there, fetch its results, end the cluster, and exit with
    the experiment's code. `agents`: on machines of its own, without a head.

    `options`: those of `order`.
    """
    from regrow.infra.clusters.provider import described

    if (run_by := on_agents.opened(cluster_file, "--agents" if agents else None)) is not None:
        if keep:
            raise UserError("--keep: nothing is left up: agents end with the experiment")
        what = order(run_by.cluster, file, **options)
        say_served(what)
        on_agents.run_on(run_by, what, yes=yes)
    run = opened(cluster_file)
    what = order(run.cluster, file, **options)
    run.provider.check()
    head = f"{what.spec.name} on {run.cluster.name}, {run.cluster.on}:"
    confirm([head, *described(run.provider.plan())], yes=yes)
    with told_what_may_be_left(run):
        run.up(keep=keep)
        job = run.submit(what)
    say_served(what)
    say(
        f"{what.spec.name} runs on {run.cluster.name}; with Ctrl-C it continues there without this"
        " terminal"
    )
    try:
        code = run.follow(what, job)
    except KeyboardInterrupt:
        say(
            f"{what.spec.name} continues there; `regrow cluster attach {cluster_file}"
            f" {what.spec.name}` follows it again"
        )
        say(f"the cluster stays up: {run.ending}")
        sys.exit(ExitCode.INTERRUPTED)
    with told_what_may_be_left(run):
        run.bring_home(what, Path(what.spec.name))
        run.done(what)
    sys.exit(code)


def say_served(what: RunRequest) -> None:
    """Register the experiment with this machine's station, if it is to be served."""
    from regrow.apps.serving import station_registration

    for line in station_registration.of_experiment(what.places, what.spec):
        say(line)


@contextmanager
def told_what_may_be_left(run: ClusterRun) -> Iterator[None]:
    """On Ctrl-C within the block, warn that machines may still run."""
    try:
        yield
    except KeyboardInterrupt:
        say(
            f"interrupted: of the cluster {run.cluster.name} machines may be up; `regrow cluster"
            f" status {run.file}` shows them"
        )
        say(run.ending)
        sys.exit(ExitCode.INTERRUPTED)


@cluster.command()
def up(file: ClusterFile, yes: options.Yes = False) -> None:
    """Bring a cluster up, or the missing parts of it. Running parts are not touched."""
    from regrow.infra.clusters.provider import described

    run = opened(file)
    confirm([f"{file} starts", *described(run.provider.plan())], yes=yes)
    began = time.monotonic()
    with told_what_may_be_left(run):
        run.up(keep=True)
    say(
        f"the cluster {run.cluster.name} is up, after {time.monotonic() - began:.0f} s; `regrow"
        f" cluster down {file}` ends it"
    )


@cluster.command()
def status(
    file: ClusterFile,
    as_json: Annotated[bool, option("For machines: JSON", "--json")] = False,
) -> None:
    """Show the machines and experiments of a cluster; over SSH and on Slurm, the agents."""
    from regrow.infra.clusters.jobs import Away

    if (run_by := on_agents.opened(file)) is not None:
        on_agents.status(run_by, as_json=as_json)
        return
    run = opened(file)
    machines, agents = run.provider.status(), agents_of(file)
    try:
        jobs = run.jobs.all() if any(machine.role == "head" for machine in machines) else []
    except Away as away:
        say(str(away))
        jobs = []
    if as_json:
        found = {
            "name": run.cluster.name,
            "machines": [asdict(one) for one in machines],
            "experiments": [
                {"name": job.experiment, "job": job.id, "status": job.status} for job in jobs
            ],
            "agents": msgspec.to_builtins(agents),
        }
        print(json.dumps(found))
        return
    if not machines:
        tell(f"nothing of the cluster {run.cluster.name} is there")
    for one in machines:
        words = (f"{one.role:7}{one.address}", one.type, one.market, one.state)
        tell("  ".join(filter(None, words)))
    for line in on_agents.summaries(agents):
        tell(line)
    for job in jobs:
        tell(f"{job.experiment}: {job.status.lower()} (job {job.id})")


@cluster.command()
def submit(
    file: ClusterFile,
    experiment: options.File,
    name: options.OtherName = None,
    trials: options.OtherTrials = None,
    retry_failed: options.RetryFailed = False,
    state: options.State = None,
    include: options.Include = None,
    apart: Annotated[
        bool, option("On Kubernetes: with a cluster of its own, as a RayJob", "--job")
    ] = False,
    agents: Annotated[
        bool,
        option("As agents, without a head: Jobs on Kubernetes, fleets on AWS", "--agents"),
    ] = False,
    yes: Annotated[
        bool, option("With --agents on AWS: do not ask before it costs money", "--yes", "-y")
    ] = False,
) -> None:
    """Start an experiment on a cluster that is up, or by --agents on machines of its own, without
    following it.
    """
    take_along(include)
    asked: dict[str, Any] = {"name": name, "trials": trials, "state": state}
    asked["retry_failed"] = retry_failed
    if apart and agents:
        raise UserError("--job and --agents are two ways; choose one")
    if (run_by := on_agents.opened(file, "--agents" if agents else None)) is not None:
        what = order(run_by.cluster, experiment, **asked)
        on_agents.submit(run_by, what, yes=yes)
        say_served(what)
        return
    run = opened(file)
    what = order(run.cluster, experiment, **asked)
    if apart:
        run.submit_apart(what)
        say_served(what)
        say(
            f"`regrow cluster status {file}` shows its pods, `regrow cluster down {file}` ends it"
            " before its time"
        )
        return
    job = run.submit(what)
    say_served(what)
    say(
        f"{job.experiment} runs on {run.cluster.name} (job {job.id}); `regrow cluster attach {file}"
        f" {job.experiment}` follows it"
    )


@cluster.command()
def attach(
    file: ClusterFile, experiment: Annotated[str, typer.Argument(help="The experiment's name")]
) -> None:
    """Follow an experiment that runs on a cluster, from its beginning. Ctrl-C leaves it running."""
    from regrow.infra.clusters.description import WithHead

    run_by, there = on_agents.maybe(file)
    if run_by and (not isinstance(there, WithHead) or on_agents.known(run_by, experiment)):
        on_agents.attach(run_by, experiment)
    run = opened(file)
    jobs = [job for job in run.jobs.all() if job.experiment == experiment]
    if not jobs:
        hint = f"`regrow cluster status {file}` lists those that were"
        raise UserError(f"{experiment} was not submitted to the cluster {run.cluster.name}; {hint}")
    try:
        job, _ = run.jobs.follow(jobs[-1].id, show, 0)
    except KeyboardInterrupt:
        say(f"{experiment} continues there")
        sys.exit(0)
    sys.exit(job.exit_code or 0)


@cluster.command()
def logs(file: ClusterFile) -> None:
    """Print the launcher's log of a cluster, on this machine; over SSH, on Slurm, and of a fleet's
    machines that could not take part, the last lines of the agents' output.
    """
    from regrow.infra.clusters.folder import Folder

    if (run_by := on_agents.opened(file)) is not None:
        on_agents.logs(run_by)
        return
    run_by, found = on_agents.maybe(file)
    log = Folder(found.name).log
    if log.exists():
        tell(log.read_text(), end="")
    told = run_by is not None and on_agents.print_outputs(run_by, *run_by.engine.submissions())
    if not told and not log.exists():
        more = "" if run_by is None else ", and no output of agents is known"
        raise UserError(f"the cluster of {file} was never brought up from this machine{more}")


@cluster.command()
def ui(file: ClusterFile) -> None:
    """Open the pages of a cluster here: Ray's dashboard, Prefect and MLflow of its last experiment.
    Ctrl-C closes them.
    """
    run = opened(file)
    with run.pages() as pages:
        for name, address in pages.items():
            say(f"{name + ':':9}{address}")
        say("Ctrl-C closes them")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            say("closed")


@cluster.command()
def down(file: ClusterFile, yes: options.Yes = False) -> None:
    """End a cluster, and check that nothing of it is left."""
    if (run_by := on_agents.opened(file)) is not None:
        on_agents.down(run_by, yes=yes)
        return
    run = opened(file)
    with told_what_may_be_left(run):
        agents = (one.experiment for one in agents_of(file) if one.there)
        there = dict.fromkeys([*run.busy(), *agents])
        if there:
            which = f"{', '.join(there)} runs there, and is interrupted"
            confirm([f"{which}; the next `regrow run --on` continues with it"], yes=yes)
        run.down()


@cluster.command()
def check(file: ClusterFile) -> None:
    """Check a cluster file for mistakes, without starting anything."""
    if (run_by := on_agents.opened(file)) is not None:
        run_by.engine.check()
    else:
        opened(file).provider.check()
    tell(f"{file}: no mistake was found")


@cluster.command()
def export(
    file: ClusterFile,
    experiment: Annotated[
        Path | None,
        typer.Argument(
            help="The experiment's YAML file, for files of agents: SSH, Slurm, Kubernetes, AWS",
            readable=False,
        ),
    ] = None,
    name: options.OtherName = None,
    state: options.State = None,
    folder: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write into")
    ] = Path(),
    sky: Annotated[bool, option("A task of SkyPilot instead", "--sky")] = False,
) -> None:
    """Write the engine's files, such as Ray's launcher file or KubeRay's manifests, for use without
    regrow. On Slurm: print the file for sbatch. Over SSH: a unit of systemd and its script. On
    Kubernetes and AWS, with an experiment: its agents.
    """
    from regrow.infra.clusters.clouds import sky as skypilot

    option = None if experiment is None else "with an experiment"
    if (run_by := on_agents.opened(file, option)) is not None:
        if sky:
            skypilot.files(run_by.cluster)  # raises
        if experiment is None:
            raise UserError(f"name the experiment's file: regrow cluster export {file} EXPERIMENT")
        what = order(run_by.cluster, experiment, name=name, trials=None, state=state)
        if (files := on_agents.export(run_by, what)) is None:
            return
    else:
        run = opened(file)
        files = skypilot.files(run.cluster) if sky else run.provider.files()
    for called, content in files.items():
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
        tell(into)


@cluster.command()
def schema() -> None:
    """Print the JSON schema of a cluster file, for editors."""
    from regrow.infra.clusters.cluster_file import schema as published

    print(json.dumps(published(), indent=2))
