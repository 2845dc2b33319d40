"""`regrow run --on` and `regrow cluster` with a file that says `on: slurm`."""

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
    from regrow.flows.arrays import ArrayRun
    from regrow.flows.remote import RunRequest
    from regrow.infra.clusters.slurm import Array

_TICK = 0.5
_LINES = 20
"""Lines of each agent's output that `regrow cluster logs` prints."""


def say(line: str) -> None:
    """Print a message on standard error: standard output is the experiment's."""
    tell(line, error=True, flush=True)


def opened(file: Path) -> ArrayRun | None:
    """Return the runs on Slurm that a cluster file describes; None for another kind of cluster.
    Raises UserError and SpecError.
    """
    from regrow.infra.clusters.cluster_file import read_cluster
    from regrow.infra.clusters.description import Slurm

    cluster = read_cluster(file)
    if not isinstance(cluster, Slurm):
        return None
    from regrow.flows.arrays import ArrayRun

    return ArrayRun(cluster=cluster, file=file, say=say)


def run_on(run: ArrayRun, order: RunRequest) -> NoReturn:
    """Submit an array of agents unless one is in the queue, follow the experiment, and exit with
    its code.
    """
    again = os.environ[AGAIN] = shlex.join(
        ["regrow", "run", str(order.file), "--on", str(run.file)]
    )
    array = None if run.over(order) else run.submit(order)
    if array is not None:
        say(
            f"{order.spec.name} runs on Slurm without this terminal, too; after Ctrl-C, `{again}`"
            " follows it again"
        )
    follow(run, array, order.places, order.spec.name, quiet=order.quiet, as_json=order.as_json)


def follow(
    run: ArrayRun,
    array: Array | None,
    places: Places,
    name: str,
    *,
    quiet: bool = False,
    as_json: bool = False,
) -> NoReturn:
    """Show an experiment until it ends, and exit with its code. `array`: None for one that is
    over.
    """
    from regrow.cli.watch import view
    from regrow.flows.arrays import Agents, Gone

    runs_it = Agents(run, array)
    try:
        told = ""
        while name not in places.experiments():
            if (banner := runs_it.banner()) not in (told, "") and not quiet:
                say(banner)
            told = banner
            time.sleep(_TICK)
        store = places.known(name)
        try:
            history = view(store, runs_it, places, name, quiet=quiet, as_json=as_json)
        except Gone as gone:
            say(f"{gone}\n{name} is not finished; `{os.environ[AGAIN]}` continues it")
            sys.exit(ExitCode.INTERRUPTED)
    except KeyboardInterrupt:
        say(
            f"{name} continues on Slurm; `regrow stop {name} --state {shlex.quote(places.root)}`"
            f" ends it, `regrow cluster down {run.file}` cancels its agents"
        )
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.DONE if history is None else exit_codes.of_experiment(history))


def submit(run: ArrayRun, order: RunRequest) -> None:
    """Submit an array of agents without following the experiment."""
    if run.over(order):
        say(f"{order.spec.name} has ended; --trials asks for more of them")
        return
    run.submit(order)
    say(f"`regrow cluster attach {run.file} {order.spec.name}` follows it")


def attach(run: ArrayRun, experiment: str) -> NoReturn:
    """Follow an experiment that was submitted from here."""
    array = next((one for one in reversed(run.queue.known()) if one.experiment == experiment), None)
    if array is None:
        raise UserError(f"{experiment} was not submitted from here by {run.file}")
    os.environ.setdefault(AGAIN, f"regrow run FILE --on {shlex.quote(str(run.file))}")
    follow(run, array, Places.at(array.state), experiment)


def status(run: ArrayRun, *, as_json: bool) -> None:
    """Show what is in the queue."""
    from regrow.flows.arrays import in_words

    elements = run.elements()
    if as_json:
        there = [msgspec.to_builtins(one) for one in elements]
        print(json.dumps({"name": run.cluster.name, "elements": there}))
        return
    if not elements:
        tell(f"nothing of {run.cluster.name} is in the queue")
    for name in dict.fromkeys(one.experiment for one in elements):
        ours = [one for one in elements if one.experiment == name]
        tell(f"{name}: {in_words(ours)}")
        for one in ours:
            tell(
                "  ".join(filter(None, (f"  {one.name}", one.state, one.node, one.ran, one.reason)))
            )


def logs(run: ArrayRun) -> None:
    """Print the last lines of what the agents of the newest array printed."""
    from regrow.infra.clusters.slurm import outputs

    known = run.queue.known()
    if not known:
        raise UserError(f"nothing was submitted from here by {run.file}")
    for file in outputs(known[-1]):
        tell(f"==> {file} <==")
        for line in file.read_text(errors="replace").splitlines()[-_LINES:]:
            tell(line)


def down(run: ArrayRun, *, yes: bool) -> None:
    """Cancel the agents in the queue, and check that none is left."""
    from regrow.flows.arrays import in_words

    there = run.elements()
    names = ", ".join(dict.fromkeys(one.experiment for one in there))
    if there and not agreed(
        f"cancel {in_words(there)}, of {names}?",
        yes=yes,
        alone="nobody is there to say yes to this; give --yes",
        error=True,
    ):
        sys.exit(ExitCode.DONE)
    count = run.down()
    say(f"nothing of {run.cluster.name} is in the queue any more; {count} agents were cancelled")
