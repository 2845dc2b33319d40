"""Shared by `run --on` and `cluster`: reading both files, confirming, following, fetching the
results.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from regrow.cli.exit_codes import ExitCode
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.show.live.terminal import PlainConsole, tell
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.flows.remote import ClusterRun, RunRequest
    from regrow.infra.clusters.description import Cluster


def say(line: str) -> None:
    """Print a message on standard error: standard output is the experiment's."""
    PlainConsole(stderr=True, soft_wrap=True).print(line, markup=False)


def show(text: str) -> None:
    """Print what an experiment prints on its cluster."""
    tell(text, end="", flush=True)


def opened(file: Path) -> ClusterRun:
    """Return the cluster that a file describes. Raises UserError and SpecError."""
    from regrow.flows.remote import ClusterRun
    from regrow.infra.clusters.cluster_file import read_cluster

    return ClusterRun(cluster=read_cluster(file), say=say, show=show, file=file)


def order(
    cluster: Cluster,
    file: Path,
    *,
    name: str | None,
    trials: int | None,
    state: str | None,
    retry_failed: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> RunRequest:
    """Return the order of an experiment for a cluster. Raises UserError and SpecError for errors
    that can be found before it starts.
    """
    from regrow.apps.serving import station_registration
    from regrow.cli.spec_file import read
    from regrow.flows.checks import check_search, precheck
    from regrow.flows.remote import RunRequest, check_state
    from regrow.infra.state.yaml_file import located

    spec = read(file, trials)
    places = Places.at(state or spec.state)
    try:
        if name is not None:
            spec = type(spec).parse({**spec.to_json(), "name": name})
        check_search(spec)
        precheck(spec)
        station_registration.checked(spec, places)
        if not state and not os.environ.get("REGROW_STATE"):
            check_state(places, cluster, "state")
    except SpecError as error:
        raise (error if error.where else located(error, file))  # noqa: B904 - the same error, with its location
    check_state(places, cluster, "--state")
    return RunRequest(
        spec=spec,
        file=file,
        places=places,
        name=name,
        trials=trials,
        retry_failed=retry_failed,
        quiet=quiet,
        as_json=as_json,
    )


def confirm(lines: list[str], *, yes: bool) -> None:
    """Show what will be started, and ask. Exits if the answer is no; raises UserError if standard
    input is no terminal.
    """
    for line in lines:
        say(line)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("nobody is there to say yes to this; give --yes")
    if not typer.confirm("start it?", err=True):
        sys.exit(ExitCode.DONE)


def run_on(file: Path, cluster_file: Path, *, yes: bool, keep: bool, **options: Any) -> NoReturn:
    """Start a cluster, run an experiment there, fetch its results, end the cluster, and exit with
    the experiment's code.

    `options`: those of `order`.
    """
    from regrow.flows.remote import offer

    run = opened(cluster_file)
    what = order(run.cluster, file, **options)
    run.provider.check()
    confirm(
        [f"{what.spec.name} on {run.cluster.name}, {run.cluster.on}:", *offer(run.provider.plan())],
        yes=yes,
    )
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
    """Register the experiment with this machine's station for serving, if its specification asks
    for it.
    """
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
