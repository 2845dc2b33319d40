"""`regrow cluster`: the single steps of clusters that a file describes; `regrow run --on` does all
of them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from regrow.cli.on_cluster import (
    confirm,
    opened,
    order,
    say,
    say_served,
    show,
    told_what_may_be_left,
)
from regrow.cli.options import IncludeOption, StateOption, take_along
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError

cluster = typer.Typer(
    name="cluster",
    no_args_is_help=True,
    help="Clusters of machines that a file describes.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
ClusterFile = Annotated[Path, typer.Argument(help="The cluster's YAML file", readable=False)]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]


@cluster.command()
def up(file: ClusterFile, yes: YesOption = False) -> None:
    """Bring a cluster up, or the missing parts of it. Running parts are not touched."""
    from regrow.flows.remote import offer

    run = opened(file)
    confirm([f"{file} starts", *offer(run.provider.plan())], yes=yes)
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
    as_json: Annotated[bool, typer.Option("--json", help="For machines: JSON")] = False,
) -> None:
    """Show the machines and experiments of a cluster."""
    from regrow.infra.clusters.jobs import Away

    run = opened(file)
    machines = run.provider.status()
    try:
        jobs = run.jobs.all() if any(machine.role == "head" for machine in machines) else []
    except Away as away:
        say(str(away))
        jobs = []
    if as_json:
        print(
            json.dumps(
                {
                    "name": run.cluster.name,
                    "machines": [
                        {
                            "address": one.address,
                            "role": one.role,
                            "type": one.type,
                            "market": one.market,
                            "state": one.state,
                        }
                        for one in machines
                    ],
                    "experiments": [
                        {"name": job.experiment, "job": job.id, "status": job.status}
                        for job in jobs
                    ],
                }
            )
        )
        return
    if not machines:
        tell(f"nothing of the cluster {run.cluster.name} is there")
    for one in machines:
        tell(
            "  ".join(
                word
                for word in (f"{one.role:7}{one.address}", one.type, one.market or "", one.state)
                if word
            )
        )
    for job in jobs:
        tell(f"{job.experiment}: {job.status.lower()} (job {job.id})")


@cluster.command()
def submit(
    file: ClusterFile,
    experiment: Annotated[Path, typer.Argument(help="The experiment's YAML file", readable=False)],
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
    include: IncludeOption = None,
    apart: Annotated[
        bool, typer.Option("--job", help="On Kubernetes: with a cluster of its own, as a RayJob")
    ] = False,
) -> None:
    """Start an experiment on a cluster that is up, without following it."""
    take_along(include)
    run = opened(file)
    what = order(
        run.cluster, experiment, name=name, trials=trials, retry_failed=retry_failed, state=state
    )
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
    """Print the launcher's log of a cluster, on this machine."""
    from regrow.infra.clusters.cluster_file import read_cluster
    from regrow.infra.clusters.folder import Folder

    log = Folder(read_cluster(file).name).log
    if not log.exists():
        raise UserError(f"the cluster of {file} was never brought up from this machine")
    tell(log.read_text(), end="")


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
def down(file: ClusterFile, yes: YesOption = False) -> None:
    """End a cluster, and check that nothing of it is left."""
    run = opened(file)
    with told_what_may_be_left(run):
        if there := run.busy():
            confirm(
                [
                    (
                        f"{', '.join(there)} runs there, and is interrupted;"
                        " the next `regrow run --on` continues with it"
                    )
                ],
                yes=yes,
            )
        run.down()


@cluster.command()
def check(file: ClusterFile) -> None:
    """Check a cluster file for mistakes, without starting anything."""
    run = opened(file)
    run.provider.check()
    tell(f"{file}: no mistake was found")


@cluster.command()
def export(
    file: ClusterFile,
    folder: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write into")
    ] = Path(),
    sky: Annotated[bool, typer.Option("--sky", help="A task of SkyPilot instead")] = False,
) -> None:
    """Write the engine's files, such as Ray's launcher file or KubeRay's manifests, for use without
    regrow.
    """
    from regrow.infra.clusters.clouds import sky as skypilot

    run = opened(file)
    for name, content in (skypilot.files(run.cluster) if sky else run.provider.files()).items():
        into = folder / name
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
