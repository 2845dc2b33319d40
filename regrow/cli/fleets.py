"""`regrow cluster` and `regrow run --on` with agents on fleets of AWS."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from regrow.cli import exit_codes
from regrow.cli.exit_codes import ExitCode
from regrow.infra.state.places import AGAIN
from regrow.show.live.terminal import tell

if TYPE_CHECKING:
    from regrow.flows.fleets import FleetRun
    from regrow.flows.remote import RunRequest
    from regrow.infra.clusters.clouds.fleet_account import Fleet
    from regrow.infra.clusters.description import Cluster
    from regrow.search.history import History

_TICK = 2.0


def say(line: str) -> None:
    """Print a message on standard error: standard output is the experiment's."""
    tell(line, error=True, flush=True)


def opened(cluster: Cluster, file: Path) -> FleetRun | None:
    """Return the runs on fleets of a cluster; None for one that is not on AWS."""
    from regrow.flows.fleets import FleetRun
    from regrow.infra.clusters.description import Aws

    return FleetRun(cluster=cluster, file=file, say=say) if isinstance(cluster, Aws) else None


def run_on(run: FleetRun, order: RunRequest, confirm: Callable[[list[str]], None]) -> NoReturn:
    """Start fleets of agents unless there are some, follow the experiment, delete what is left, and
    exit with its code.
    """
    again = os.environ[AGAIN] = shlex.join(
        ["regrow", "run", str(order.file), "--on", str(run.file), "--agents"]
    )
    over, name = run.over(order), order.spec.name
    if not over:
        _submit(run, order, confirm)
        say(f"{name} runs there without this terminal, too; after Ctrl-C, `{again}` follows it")
    try:
        history = _followed(run, order, over=over)
        if not over:
            run.done(name)
    except KeyboardInterrupt:
        say(
            f"{name} continues there; `regrow stop {name} --state {shlex.quote(order.places.root)}`"
            f" stops it, `regrow cluster down {run.file}` ends its machines"
        )
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.DONE if history is None else exit_codes.of_experiment(history))


def _followed(run: FleetRun, order: RunRequest, *, over: bool) -> History | None:
    """Show an experiment until it has ended, and return it; None if the reader of the events has
    gone. Exits if its fleets end before it.
    """
    from regrow.cli.watch import view
    from regrow.flows.fleets import Agents, Gone

    places, name, told = order.places, order.spec.name, ""
    runs_it = Agents(run, places, name, over=over)
    try:
        while name not in places.experiments():
            if (banner := runs_it.banner()) not in (told, "") and not order.quiet:
                say(banner)
            told = banner
            time.sleep(_TICK)
        store = places.known(name)
        return view(store, runs_it, places, name, quiet=order.quiet, as_json=order.as_json)
    except Gone as gone:
        say(f"{gone}\n{name} is not finished; `{os.environ[AGAIN]}` continues it")
        sys.exit(ExitCode.INTERRUPTED)


def submit(run: FleetRun, order: RunRequest, confirm: Callable[[list[str]], None]) -> None:
    """Start fleets of agents without following the experiment. `confirm` shows what may be started
    and asks.
    """
    state, name = shlex.quote(order.places.root), order.spec.name
    if run.over(order):
        say(f"{name} has ended; --trials asks for more of them")
        return
    _submit(run, order, confirm)
    say(
        f"`regrow watch {name} --state {state}` follows it, `regrow cluster status {run.file}`"
        f" shows its machines, `regrow cluster down {run.file}` ends them"
    )


def _submit(run: FleetRun, order: RunRequest, confirm: Callable[[list[str]], None]) -> None:
    run.check(order)
    if not run.there(order.spec.name):
        confirm(run.offer(order))
    run.submit(order)


def of(cluster: Cluster, file: Path) -> list[Fleet]:
    """Return the fleets of a cluster that start machines; none if it is not on AWS."""
    run = opened(cluster, file)
    return [] if run is None else run.fleets()


def line(one: Fleet) -> str:
    """Describe a fleet, for people."""
    kept = f"keeps {one.most} machines, has {one.running}"
    return f"fleet  {one.id}  {one.group}  of {one.experiment}: {kept}"


def logs(cluster: Cluster, file: Path) -> bool:
    """Print what machines printed that could not take part. Returns whether there are some."""
    run = opened(cluster, file)
    unable = [] if run is None else run.all_unable()
    for one in unable:
        tell(f"==> {one.host} ({one.group}), exit status {one.status} <==")
        for line in one.lines:
            tell(line)
    return bool(unable)
