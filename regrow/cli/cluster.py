"""`regrow cluster`: the single steps of clusters that a file describes; `regrow run --on`, whose
`run_on` is here, does all of them.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer

from regrow.cli import exit_codes, options
from regrow.cli.console import confirm, say
from regrow.cli.exit_codes import ExitCode
from regrow.cli.help import Command, GroupedCommands
from regrow.cli.options import include_in_uploads, option
from regrow.infra.state.places import AGAIN, Places
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.flows.agents import AgentRun, RunRequest
    from regrow.infra.clusters.agents import Agent, Submission
    from regrow.infra.clusters.description import Cluster
    from regrow.search.events import Closed

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
_TICK = 0.5


def opened(file: Path) -> AgentRun:
    """Return the runs by agents that a cluster file describes. Raises UserError and SpecError."""
    from regrow.flows.agents import AgentRun, engine
    from regrow.infra.clusters.cluster_file import read_cluster

    cluster = read_cluster(file)
    return AgentRun(cluster=cluster, engine=engine(cluster), file=file, say=say)


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
    run = opened(cluster_file)
    what = order(run.cluster, file, **options)
    register_serving(what)
    again = os.environ[AGAIN] = run.again(str(what.file), what.places)
    before = run.end_of(what)
    submission = None if run.over(what, before) else _submitted(run, what, before, yes=yes)
    if submission is not None:
        say(
            f"{what.spec.name} runs on {run.engine.place} without this terminal, too; after"
            f" Ctrl-C, `{again}` follows it again"
        )
    follow(
        run,
        submission,
        what.places,
        what.spec.name,
        before=None if submission is None else before,
        quiet=what.quiet,
        as_json=what.as_json,
    )


def follow(
    run: AgentRun,
    submission: Submission | None,
    places: Places,
    name: str,
    *,
    before: Closed | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> NoReturn:
    """Show an experiment until it ends, and exit with its code.

    Args:
        run: who runs it.
        submission: its agents; None for one that is over.
        places: where its state is.
        name: its name.
        before: an earlier end, after which it is to continue; None: there is none.
        quiet: without progress.
        as_json: events as JSON.

    """
    from regrow.cli.watch import view
    from regrow.flows.agents import AgentsGone, RunnerWatch
    from regrow.infra.log.reading import survey

    runs_it = RunnerWatch(run, submission)
    try:
        shown = ""
        while name not in places.experiments() or (
            before is not None and survey(places.store(name)).last == before
        ):
            if (banner := runs_it.banner()) not in (shown, "") and not quiet:
                say(banner)
            shown = banner
            time.sleep(_TICK)
        history = view(places.known(name), runs_it, places, name, quiet=quiet, as_json=as_json)
        if submission is not None and history is not None:
            run.done(submission)
    except AgentsGone as gone:
        say(f"{gone}\n{name} is not finished; `{os.environ[AGAIN]}` continues it")
        sys.exit(ExitCode.INTERRUPTED)
    except KeyboardInterrupt:
        stop = shlex.join(["regrow", "stop", name, "--state", places.root])
        down = shlex.join(["regrow", "cluster", "down", str(run.file)])
        say(f"{name} continues on {run.engine.place}; `{stop}` ends it, `{down}` ends its agents")
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.DONE if history is None else exit_codes.of_experiment(history))


def _submitted(run: AgentRun, what: RunRequest, before: Closed | None, *, yes: bool) -> Submission:
    """Ask if it costs something, and start the agents that are missing."""
    if lines := run.engine.offer(run.work(what, before)):
        confirm(lines, yes=yes)
    return run.submit(what, before)


def register_serving(what: RunRequest) -> None:
    """Register the experiment with this machine's station, if it is to be served."""
    from regrow.apps.serving import station_registration

    for line in station_registration.of_experiment(what.places, what.spec):
        say(line)


@cluster.command(cls=Command)
def status(
    file: ClusterFile,
    as_json: Annotated[bool, option("For machines: JSON", "--json")] = False,
) -> None:
    """Show the agents of a cluster that run, wait or are missing."""
    from regrow.flows.agents import in_words

    run = opened(file)
    agents = run.engine.agents()
    if as_json:
        print(json.dumps({"name": run.cluster.name, "agents": msgspec.to_builtins(agents)}))
        return
    if not any(one.there for one in agents):
        echo(f"no agent of {run.cluster.name} runs or waits")
    by_experiment: dict[str, list[Agent]] = {}
    for one in agents:
        by_experiment.setdefault(one.experiment, []).append(one)
    for name, ours in by_experiment.items():
        if name:
            echo(f"{name}: {in_words(ours)}")
        for one in ours:
            node = one.node if one.node != one.name else ""
            echo("  ".join(filter(None, (f"  {one.name}", one.state, node, one.ran, one.reason))))


@cluster.command(cls=Command)
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
    include_in_uploads(include)
    run = opened(file)
    what = order(run.cluster, experiment, name=name, trials=trials, state=state)
    before = run.end_of(what) if run.engine.reads else None
    if run.over(what, before):
        say(f"{what.spec.name} has ended; --trials asks for more of them")
    else:
        _submitted(run, what, before, yes=yes)
        quoted = shlex.quote(str(file))
        say(
            f"`regrow cluster attach {quoted} {what.spec.name}` follows it, `regrow cluster status"
            f" {quoted}` shows its agents, `regrow cluster down {quoted}` ends them"
        )
    register_serving(what)


@cluster.command(cls=Command)
def attach(
    file: ClusterFile, experiment: Annotated[str, typer.Argument(help="The experiment's name")]
) -> None:
    """Follow an experiment that agents run, from its beginning. Ctrl-C leaves it running."""
    run = opened(file)
    ours = (one for one in reversed(run.engine.submissions()) if one.experiment == experiment)
    if (submission := next(ours, None)) is None:
        raise UserError(f"{experiment} was not submitted from here by {run.file}")
    places = Places.at(submission.state)
    os.environ.setdefault(AGAIN, run.again("FILE", places))
    follow(run, submission, places, experiment)


@cluster.command(cls=Command)
def logs(file: ClusterFile) -> None:
    """Print the last lines of what agents printed; in a cloud, of those that could not take
    part.
    """
    run = opened(file)
    submissions = run.engine.submissions()
    if not submissions:
        raise UserError(f"nothing was submitted from here by {run.file}")
    for one in run.engine.outputs(submissions[-1]):
        echo(f"==> {one.title} <==")
        for line in one.lines:
            echo(line)


@cluster.command(cls=Command)
def down(file: ClusterFile, yes: options.Yes = False) -> None:
    """End the agents of a cluster with their machines, and check that nothing of it is left."""
    from regrow.flows.agents import in_words

    run = opened(file)
    busy = [one for one in run.engine.agents() if one.experiment and one.there]
    names = ", ".join(dict.fromkeys(one.experiment for one in busy))
    if busy:
        confirm([], yes=yes, question=f"end {in_words(busy)}, of {names}?")
    run.down()


@cluster.command(cls=Command)
def check(file: ClusterFile) -> None:
    """Check a cluster file for mistakes, without starting anything."""
    opened(file).engine.check()
    echo(f"{file}: no mistake was found")


@cluster.command(cls=Command)
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
    run = opened(file)
    if sky:
        from regrow.infra.clusters.clouds import sky as skypilot

        files = skypilot.files(run.cluster)
    elif experiment is None:
        raise UserError(f"name the experiment's file: regrow cluster export {file} EXPERIMENT")
    else:
        what = order(run.cluster, experiment, name=name, trials=None, state=state)
        files = run.engine.files(run.work(what), say)
        if not run.engine.sends:  # one file, for a command of this machine
            for text in files.values():
                echo(text.decode(), end="")
            return
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
        echo(into)


@cluster.command(cls=Command)
def schema() -> None:
    """Print the JSON schema of a cluster file, for editors."""
    from regrow.infra.clusters.cluster_file import schema as published

    print(json.dumps(published(), indent=2))
