"""What `run --on` and `cluster` share: reading both files, asking, following, coming home."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from regrow.cli.exit_codes import ExitCode
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.infra.clusters.description import Cluster
    from regrow.remote import ClusterRun, Order


def say(line: str) -> None:
    """A line of ours, on standard error: standard output is the experiment's."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(line, markup=False)


def show(text: str) -> None:
    """What an experiment prints on its cluster."""
    sys.stdout.write(text)
    sys.stdout.flush()


def opened(file: Path) -> ClusterRun:
    """The cluster that a file describes. Raises UserError and SpecError."""
    from regrow.infra.clusters.cluster_file import read_cluster
    from regrow.remote import ClusterRun

    return ClusterRun(cluster=read_cluster(file), say=say, show=show, file=file)


def order(
    cluster: Cluster, file: Path, *, name: str | None, trials: int | None, state: str | None, retry_failed: bool = False,
    quiet: bool = False, as_json: bool = False,
) -> Order:
    """An experiment for a cluster. Raises UserError and SpecError for what can be known beforehand to be wrong."""
    from regrow.cli.spec_file import read
    from regrow.infra.state.yaml_file import located
    from regrow.launch import check_search, glance_at
    from regrow.remote import Order, check_state
    from regrow.serving import kept_up

    spec = read(file, trials)
    places = Places.at(state or spec.state)
    try:
        if name is not None:
            spec = type(spec).parse({**spec.to_json(), "name": name})
        check_search(spec)
        glance_at(spec)
        kept_up.checked(spec, places)
        if not state and not os.environ.get("REGROW_STATE"):
            check_state(places, cluster, "state")
    except SpecError as error:
        raise error if error.where else located(error, file)  # noqa: B904 - the same error, with its place
    check_state(places, cluster, "--state")
    return Order(
        spec=spec, file=file, places=places, name=name, trials=trials, retry_failed=retry_failed, quiet=quiet, as_json=as_json
    )


def confirm(lines: list[str], *, yes: bool) -> None:
    """Shows what may be started, and asks. Exits if the answer is no; raises UserError where there is nobody to ask."""
    for line in lines:
        say(line)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("nobody is there to say yes to this; give --yes")
    if not typer.confirm("start it?", err=True):
        sys.exit(ExitCode.DONE)


def run_on(file: Path, cluster_file: Path, *, yes: bool, keep: bool, **options: Any) -> NoReturn:
    """Brings a cluster up, runs an experiment there, brings its results home, ends the cluster, and exits with its code.

    `options`: those of `order`.
    """
    from regrow.remote import offer

    run = opened(cluster_file)
    what = order(run.cluster, file, **options)
    run.provider.check()
    confirm([f"{what.spec.name} on {run.cluster.name}, {run.cluster.on}:", *offer(run.provider.plan())], yes=yes)
    with told_what_may_be_left(run):
        run.up(keep=keep)
        job = run.submit(what)
    say_served(what)
    say(f"{what.spec.name} runs on {run.cluster.name}; with Ctrl-C it goes on there without this terminal")
    try:
        code = run.follow(what, job)
    except KeyboardInterrupt:
        say(f"{what.spec.name} goes on there; `regrow cluster attach {cluster_file} {what.spec.name}` follows it again")
        say(f"the cluster stays up: {run.ending}")
        sys.exit(ExitCode.INTERRUPTED)
    with told_what_may_be_left(run):
        run.bring_home(what, Path(what.spec.name))
        run.done(what)
    sys.exit(code)


def say_served(what: Order) -> None:
    """Has a station of this machine serve what the experiment finds there, if its specification says so."""
    from regrow.serving import kept_up

    for line in kept_up.of_experiment(what.places, what.spec):
        say(line)


@contextmanager
def told_what_may_be_left(run: ClusterRun) -> Iterator[None]:
    """Whoever presses Ctrl-C within the block is told that machines may be up."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted: of the cluster {run.cluster.name} machines may be up; `regrow cluster status {run.file}` shows them")
        say(run.ending)
        sys.exit(ExitCode.INTERRUPTED)
