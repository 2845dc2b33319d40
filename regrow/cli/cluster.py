"""`regrow cluster`: clusters of machines that a file describes, by themselves; `regrow run --on` does all of it in one."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from regrow.cli.on_cluster import confirm, opened, order, say, say_served, show, told_what_may_be_left
from regrow.cli.options import StateOption
from regrow.tasks.errors import UserError

cluster = typer.Typer(
    name="cluster", no_args_is_help=True, help="Clusters of machines that a file describes.", rich_markup_mode=None,
    pretty_exceptions_enable=False, add_completion=False,
)
ClusterFile = Annotated[Path, typer.Argument(help="The cluster's YAML file", readable=False)]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]


@cluster.command()
def up(file: ClusterFile, yes: YesOption = False) -> None:
    """Bring a cluster up, or what is missing of it. What runs is not touched."""
    from regrow.remote import offer

    run = opened(file)
    confirm([f"{file} starts", *offer(run.provider.plan())], yes=yes)
    began = time.monotonic()
    with told_what_may_be_left(run):
        run.up(keep=True)
    say(f"the cluster {run.cluster.name} is up, after {time.monotonic() - began:.0f} s; `regrow cluster down {file}` ends it")


@cluster.command()
def status(file: ClusterFile, as_json: Annotated[bool, typer.Option("--json", help="For machines: JSON")] = False) -> None:
    """What there is of a cluster: machines and experiments."""
    from regrow.infra.clusters.jobs import Away

    run = opened(file)
    machines = run.provider.status()
    try:
        jobs = run.jobs.all() if any(machine.role == "head" for machine in machines) else []
    except Away as away:
        say(str(away))
        jobs = []
    if as_json:
        print(json.dumps({
            "name": run.cluster.name,
            "machines": [{"address": one.address, "role": one.role, "type": one.type, "market": one.market, "state": one.state}
                         for one in machines],
            "experiments": [{"name": job.experiment, "job": job.id, "status": job.status} for job in jobs],
        }))
        return
    if not machines:
        print(f"nothing of the cluster {run.cluster.name} is there")
    for one in machines:
        print("  ".join(word for word in (f"{one.role:7}{one.address}", one.type, one.market or "", one.state) if word))
    for job in jobs:
        print(f"{job.experiment}: {job.status.lower()} (job {job.id})")


@cluster.command()
def submit(
    file: ClusterFile,
    experiment: Annotated[Path, typer.Argument(help="The experiment's YAML file", readable=False)],
    name: Annotated[str | None, typer.Option(help="Another name than the file's")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Another total number of trials than the file's")] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="If it is there already: try failed trials again, from their last checkpoints")
    ] = False,
    state: StateOption = None,
    apart: Annotated[bool, typer.Option("--job", help="On Kubernetes: with a cluster of its own, as a RayJob")] = False,
) -> None:
    """Start an experiment on a cluster that is up, and leave it to itself."""
    run = opened(file)
    what = order(run.cluster, experiment, name=name, trials=trials, retry_failed=retry_failed, state=state)
    if apart:
        run.submit_apart(what)
        say_served(what)
        say(f"`regrow cluster status {file}` shows its pods, `regrow cluster down {file}` ends it before its time")
        return
    job = run.submit(what)
    say_served(what)
    say(f"{job.experiment} runs on {run.cluster.name} (job {job.id}); `regrow cluster attach {file} {job.experiment}` follows it")


@cluster.command()
def attach(file: ClusterFile, experiment: Annotated[str, typer.Argument(help="The experiment's name")]) -> None:
    """Follow an experiment that runs on a cluster, from its beginning. Ctrl-C leaves it running."""
    run = opened(file)
    jobs = [job for job in run.jobs.all() if job.experiment == experiment]
    if not jobs:
        hint = f"`regrow cluster status {file}` lists those that were"
        raise UserError(f"{experiment} was not submitted to the cluster {run.cluster.name}; {hint}")
    try:
        job, _ = run.jobs.follow(jobs[-1].id, show, 0)
    except KeyboardInterrupt:
        say(f"{experiment} goes on there")
        sys.exit(0)
    sys.exit(job.exit_code or 0)


@cluster.command()
def logs(file: ClusterFile) -> None:
    """What the launcher said of a cluster, on this machine."""
    from regrow.infra.clusters.cluster_file import read_cluster
    from regrow.infra.clusters.folder import Folder

    log = Folder(read_cluster(file).name).log
    if not log.exists():
        raise UserError(f"the cluster of {file} was never brought up from this machine")
    print(log.read_text(), end="")


@cluster.command()
def ui(file: ClusterFile) -> None:
    """Open the pages of a cluster here: Ray's dashboard, Prefect and MLflow of its last experiment. Ctrl-C closes them."""
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
    """End a cluster, and look whether anything of it is left."""
    run = opened(file)
    with told_what_may_be_left(run):
        if there := run.busy():
            confirm([f"{', '.join(there)} runs there, and is interrupted; the next `regrow run --on` goes on with it"], yes=yes)
        run.down()


@cluster.command()
def check(file: ClusterFile) -> None:
    """Look for mistakes in a cluster file, without starting anything."""
    run = opened(file)
    run.provider.check()
    print(f"{file}: no mistake was found")


@cluster.command()
def export(
    file: ClusterFile,
    folder: Annotated[Path, typer.Option("--output", "-o", help="The folder to write into")] = Path(),
    sky: Annotated[bool, typer.Option("--sky", help="A task of SkyPilot instead")] = False,
) -> None:
    """Write what the engine is given, such as Ray's launcher file or KubeRay's manifests, to go on by yourself."""
    from regrow.infra.clusters.clouds import sky as skypilot

    run = opened(file)
    for name, content in (skypilot.files(run.cluster) if sky else run.provider.files()).items():
        into = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if into.exists() and into.read_bytes() != content:
                raise UserError(f"{into} is there already, with something else in it; give another folder with -o, or remove it")
            into.write_bytes(content)
        except OSError as error:
            raise UserError(f"--output: {into} cannot be written ({error.strerror}); give another folder") from None
        print(into)


@cluster.command()
def schema() -> None:
    """Print the JSON schema of a cluster file, for editors."""
    from regrow.infra.clusters.cluster_file import schema as published

    print(json.dumps(published(), indent=2))
