"""What `regrow run --on` and `regrow cluster` do with the agents of a cluster file."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from regrow.cli import exit_codes
from regrow.cli.console import confirm, say
from regrow.cli.exit_codes import ExitCode
from regrow.infra.state.places import AGAIN, Places
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.flows.agents import AgentRun, RunRequest
    from regrow.infra.clusters.agents import Agent, Submission
    from regrow.search.events import Closed

_TICK = 0.5


def opened(file: Path) -> AgentRun:
    """Return the runs by agents that a cluster file describes. Raises UserError and SpecError."""
    from regrow.flows.agents import AgentRun, engine
    from regrow.infra.clusters.cluster_file import read_cluster

    cluster = read_cluster(file)
    return AgentRun(cluster=cluster, engine=engine(cluster), file=file, say=say)


def run_on(run: AgentRun, order: RunRequest, *, yes: bool) -> NoReturn:
    """Start the agents that are missing, follow the experiment, and exit with its code."""
    again = os.environ[AGAIN] = run.again(str(order.file), order.places)
    before = run.end_of(order)
    submission = None if run.over(order, before) else _submitted(run, order, before, yes=yes)
    if submission is not None:
        say(
            f"{order.spec.name} runs on {run.engine.place} without this terminal, too; after"
            f" Ctrl-C, `{again}` follows it again"
        )
    follow(
        run,
        submission,
        order.places,
        order.spec.name,
        before=None if submission is None else before,
        quiet=order.quiet,
        as_json=order.as_json,
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
    from regrow.flows.agents import Gone, Watch
    from regrow.infra.log.reading import survey

    runs_it = Watch(run, submission)
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
    except Gone as gone:
        say(f"{gone}\n{name} is not finished; `{os.environ[AGAIN]}` continues it")
        sys.exit(ExitCode.INTERRUPTED)
    except KeyboardInterrupt:
        stop = shlex.join(["regrow", "stop", name, "--state", places.root])
        down = shlex.join(["regrow", "cluster", "down", str(run.file)])
        say(f"{name} continues on {run.engine.place}; `{stop}` ends it, `{down}` ends its agents")
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.DONE if history is None else exit_codes.of_experiment(history))


def _submitted(run: AgentRun, order: RunRequest, before: Closed | None, *, yes: bool) -> Submission:
    """Ask if it costs something, and start the agents that are missing."""
    if lines := run.engine.offer(run.work(order, before)):
        confirm(lines, yes=yes)
    return run.submit(order, before)


def submit(run: AgentRun, order: RunRequest, *, yes: bool) -> None:
    """Start the agents that are missing, without following the experiment."""
    before = run.end_of(order) if run.engine.reads else None
    if run.over(order, before):
        say(f"{order.spec.name} has ended; --trials asks for more of them")
        return
    _submitted(run, order, before, yes=yes)
    file = shlex.quote(str(run.file))
    say(
        f"`regrow cluster attach {file} {order.spec.name}` follows it, `regrow cluster status"
        f" {file}` shows its agents, `regrow cluster down {file}` ends them"
    )


def attach(run: AgentRun, experiment: str) -> NoReturn:
    """Follow an experiment that was submitted from here."""
    ours = (one for one in reversed(run.engine.submissions()) if one.experiment == experiment)
    if (submission := next(ours, None)) is None:
        raise UserError(f"{experiment} was not submitted from here by {run.file}")
    places = Places.at(submission.state)
    os.environ.setdefault(AGAIN, run.again("FILE", places))
    follow(run, submission, places, experiment)


def status(run: AgentRun, *, as_json: bool) -> None:
    """Show the agents that run or wait."""
    from regrow.flows.agents import in_words

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


def logs(run: AgentRun) -> None:
    """Print the last lines of what the agents of the newest submission printed."""
    submissions = run.engine.submissions()
    if not submissions:
        raise UserError(f"nothing was submitted from here by {run.file}")
    for one in run.engine.outputs(submissions[-1]):
        echo(f"==> {one.title} <==")
        for line in one.lines:
            echo(line)


def down(run: AgentRun, *, yes: bool) -> None:
    """End the agents, and check that none is left."""
    from regrow.flows.agents import in_words

    busy = [one for one in run.engine.agents() if one.experiment and one.there]
    names = ", ".join(dict.fromkeys(one.experiment for one in busy))
    if busy:
        confirm([], yes=yes, question=f"end {in_words(busy)}, of {names}?")
    run.down()


def export(run: AgentRun, order: RunRequest) -> dict[str, bytes] | None:
    """Return the files that agents are started by; None: one for a command of this machine, which
    is printed.
    """
    files = run.engine.files(run.work(order), say)
    if run.engine.sends:
        return files
    for text in files.values():
        echo(text.decode(), end="")
    return None
