"""`regrow run --on` and `regrow cluster` with a file whose engine starts agents: `on: slurm` and
`on: ssh`.
"""

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
from regrow.cli.console import agreed
from regrow.cli.exit_codes import ExitCode
from regrow.infra.state.places import AGAIN, Places
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.flows.agents import AgentRun
    from regrow.flows.remote import RunRequest
    from regrow.infra.clusters.agents import Submission
    from regrow.search.events import Closed

_TICK = 0.5


def say(line: str) -> None:
    """Print a message on standard error: standard output is the experiment's."""
    tell(line, error=True, flush=True)


def opened(file: Path) -> AgentRun | None:
    """Return the runs by agents that a cluster file describes; None for a cluster with a head.
    Raises UserError and SpecError.
    """
    from regrow.infra.clusters.cluster_file import read_cluster
    from regrow.infra.clusters.description import WithHead

    cluster = read_cluster(file)
    if isinstance(cluster, WithHead):
        return None
    from regrow.flows.agents import AgentRun, engine

    found = engine(cluster)
    return None if found is None else AgentRun(cluster=cluster, engine=found, file=file, say=say)


def run_on(run: AgentRun, order: RunRequest) -> NoReturn:
    """Start the agents that are missing, follow the experiment, and exit with its code."""
    again = os.environ[AGAIN] = shlex.join(
        ["regrow", "run", str(order.file), "--on", str(run.file)]
    )
    before = run.end_of(order)
    submission = None if run.over(order) else run.submit(order)
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
        told = ""
        while name not in places.experiments() or (
            before is not None and survey(places.store(name)).last == before
        ):
            if (banner := runs_it.banner()) not in (told, "") and not quiet:
                say(banner)
            told = banner
            time.sleep(_TICK)
        history = view(places.known(name), runs_it, places, name, quiet=quiet, as_json=as_json)
    except Gone as gone:
        say(f"{gone}\n{name} is not finished; `{os.environ[AGAIN]}` continues it")
        sys.exit(ExitCode.INTERRUPTED)
    except KeyboardInterrupt:
        stop = shlex.join(["regrow", "stop", name, "--state", places.root])
        down = shlex.join(["regrow", "cluster", "down", str(run.file)])
        say(f"{name} continues on {run.engine.place}; `{stop}` ends it, `{down}` ends its agents")
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.DONE if history is None else exit_codes.of_experiment(history))


def submit(run: AgentRun, order: RunRequest) -> None:
    """Start the agents that are missing, without following the experiment."""
    if run.over(order):
        say(f"{order.spec.name} has ended; --trials asks for more of them")
        return
    run.submit(order)
    say(f"`regrow cluster attach {shlex.quote(str(run.file))} {order.spec.name}` follows it")


def attach(run: AgentRun, experiment: str) -> NoReturn:
    """Follow an experiment that was submitted from here."""
    known = (one for one in reversed(run.engine.submissions()) if one.experiment == experiment)
    submission = next(known, None)
    if submission is None:
        raise UserError(f"{experiment} was not submitted from here by {run.file}")
    os.environ.setdefault(AGAIN, f"regrow run FILE --on {shlex.quote(str(run.file))}")
    follow(run, submission, Places.at(submission.state), experiment)


def status(run: AgentRun, *, as_json: bool) -> None:
    """Show the agents that run or wait."""
    from regrow.flows.agents import in_words

    agents = run.engine.agents()
    if as_json:
        there = [msgspec.to_builtins(one) for one in agents]
        print(json.dumps({"name": run.cluster.name, "agents": there}))
        return
    if not any(one.there for one in agents):
        tell(f"no agent of {run.cluster.name} runs or waits")
    for name in dict.fromkeys(one.experiment for one in agents):
        ours = [one for one in agents if one.experiment == name]
        if name:
            tell(f"{name}: {in_words(ours)}")
        for one in ours:
            node = one.node if one.node != one.name else ""
            tell("  ".join(filter(None, (f"  {one.name}", one.state, node, one.ran, one.reason))))


def logs(run: AgentRun) -> None:
    """Print the last lines of what the agents of the newest submission printed."""
    known = run.engine.submissions()
    if not known:
        raise UserError(f"nothing was submitted from here by {run.file}")
    for one in run.engine.outputs(known[-1]):
        tell(f"==> {one.title} <==")
        for line in one.lines:
            tell(line)


def down(run: AgentRun, *, yes: bool) -> None:
    """End the agents, and check that none is left."""
    from regrow.flows.agents import in_words

    there = [one for one in run.engine.agents() if one.experiment and one.there]
    names = ", ".join(dict.fromkeys(one.experiment for one in there))
    if there and not agreed(
        f"end {in_words(there)}, of {names}?",
        yes=yes,
        alone="nobody is there to say yes to this; give --yes",
        error=True,
    ):
        sys.exit(ExitCode.DONE)
    run.down()


def export(run: AgentRun, order: RunRequest) -> dict[str, bytes] | None:
    """Print the file that agents are started by; return the files if there are several."""
    files = run.engine.files(run.work(order))
    if len(files) == 1:
        tell(next(iter(files.values())), end="")
        return None
    return {name: text.encode() for name, text in files.items()}
