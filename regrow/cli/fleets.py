"""`regrow cluster` with agents on fleets of AWS."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from regrow.show.live.terminal import tell

if TYPE_CHECKING:
    from regrow.flows.fleets import FleetRun
    from regrow.flows.remote import RunRequest
    from regrow.infra.clusters.description import Cluster


def say(line: str) -> None:
    """Print a message on standard error: standard output is the experiment's."""
    tell(line, error=True, flush=True)


def opened(cluster: Cluster, file: Path) -> FleetRun | None:
    """Return the runs on fleets of a cluster; None for one that is not on AWS."""
    from regrow.flows.fleets import FleetRun
    from regrow.infra.clusters.description import Aws

    return FleetRun(cluster=cluster, file=file, say=say) if isinstance(cluster, Aws) else None


def submit(run: FleetRun, order: RunRequest, confirm: Callable[[list[str]], None]) -> None:
    """Start fleets of agents without following the experiment. `confirm` shows what may be started
    and asks.
    """
    run.check(order)
    confirm(run.offer(order))
    run.submit(order)
    state, name = shlex.quote(order.places.root), order.spec.name
    say(
        f"`regrow watch {name} --state {state}` follows it, `regrow cluster status {run.file}`"
        f" shows its machines, `regrow cluster down {run.file}` ends them"
    )


def status(cluster: Cluster, file: Path) -> None:
    """Show the fleets of a cluster, if it is on AWS."""
    if (run := opened(cluster, file)) is None:
        return
    for one in run.fleets():
        kept = f"keeps {one.most} machines, has {one.running}"
        tell(f"fleet  {one.id}  {one.group}  of {one.experiment}: {kept}")
