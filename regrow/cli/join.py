"""`join`: makes this machine an agent of an experiment, which needs no head of its own."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regrow.cli import options
from regrow.cli.exit_codes import ExitCode
from regrow.cli.options import option, take_gpus, with_limits
from regrow.infra.machine.host_environment import check_loopback, check_sizes, check_tasks
from regrow.infra.state.places import Places
from regrow.search.bounds import LONGEST, MOST_TOGETHER
from regrow.search.durations import seconds
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.search.spec import Spec

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
LEAST_SECONDS = 120.0
"""Least duration of a machine, in seconds."""
_CODES = {
    "finished": ExitCode.DONE,
    "failed": ExitCode.FAILED,
    # By its user: agents have nothing left to do. One that left before the end may come back.
    "stopped": ExitCode.DONE,
    "interrupted": ExitCode.DONE,
}


def join(
    experiment: Annotated[
        str,
        typer.Argument(
            help="The experiment's YAML file, or the name of an existing one",
            metavar="FILE|NAME",
        ),
    ],
    name: options.OtherName = None,
    trials: options.OtherTrials = None,
    changes: options.Set = None,
    budget: options.Budget = None,
    dollars: options.Dollars = None,
    deadline: options.Deadline = None,
    state: options.State = None,
    quiet: options.Quiet = False,
    cpus: Annotated[
        int | None, option("CPUs for trials here [default: all]", min=1, max=MOST_TOGETHER)
    ] = None,
    gpus: options.Gpus = None,
    labels: Annotated[
        str | None, option("Labels of this machine: KEY=VALUE,KEY=VALUE", metavar="LABELS")
    ] = None,
    spot: Annotated[
        bool, option("This machine may be taken away: others lead before it", "--spot")
    ] = False,
    walltime: Annotated[
        str | None,
        option("How long this machine stays: 4h [default: as the batch system reports]"),
    ] = None,
    idle_timeout: Annotated[
        str | None,
        option("Leave after this time without a trial, once none is left for it [default: stay]"),
    ] = None,
    never_lead: Annotated[bool, option("Never lead", "--never-lead")] = False,
    no_trials: Annotated[bool, option("Run no trials here", "--no-trials")] = False,
    address: Annotated[
        str | None, option("This machine's address, as the others reach it", metavar="ADDRESS")
    ] = None,
    ports: Annotated[
        str | None,
        option("Use these ports alone: 20000-20100 [default: any]", metavar="FIRST-LAST"),
    ] = None,
    retry_failed: options.RetryFailed = False,
    stopped: Annotated[bool, option("Continue it if its user has stopped it", "--resume")] = False,
) -> None:
    """Take part in an experiment with this machine. The first one to join leads; when the leader is
    gone, another one leads, and the experiment continues.
    """
    from regrow.apps.agent.request import Request
    from regrow.apps.agent.take_part import take_part
    from regrow.infra.clusters.clouds import own_fleet
    from regrow.infra.clusters.slurm import job_ends
    from regrow.infra.machine import capacity
    from regrow.infra.machine.ports import Ports
    from regrow.infra.ray.labels import MARKET_LABEL

    take_gpus(gpus)
    if os.environ.get("RAY_ADDRESS"):
        raise UserError(
            "RAY_ADDRESS is set: agents make a cluster of their own; unset it, or use `regrow run`"
            " on that cluster"
        )
    check_loopback()
    check_tasks()
    check_sizes(capacity.store_size())
    if never_lead and no_trials:
        raise UserError("--never-lead and --no-trials together leave nothing to do")
    given = _labels(labels)
    if spot:
        given[MARKET_LABEL] = "spot"
    changes = with_limits(changes, budget, dollars, deadline)
    spec, places, called, command = _experiment(experiment, name, trials, changes, state)
    if quiet:
        command += ["--quiet"]

    def say(line: str) -> None:
        echo(f"regrow: {line}", flush=True)

    ended = take_part(
        Request(
            name=called,
            places=places,
            spec=spec,
            trials=trials,
            command=tuple(command),
            retry_failed=retry_failed,
            stopped=stopped,
            cpus=cpus,
            labels=given,
            address=address,
            ports=None if ports is None else Ports.parse(ports),
            ends=job_ends() if walltime is None else time.time() + _walltime(walltime),
            leads=not never_lead,
            works=not no_trials,
            fleet=own_fleet.here(),
            idle=None if idle_timeout is None else _span("--idle-timeout", idle_timeout),
        ),
        say,
    )
    say(f"{ended.why}; this agent ends")
    left = ExitCode.INTERRUPTED if ended.needed else ExitCode.DONE
    raise typer.Exit(left if ended.status is None else _CODES[ended.status])


def _experiment(
    experiment: str,
    name: str | None,
    trials: int | None,
    changes: list[str] | None,
    state: str | None,
) -> tuple[Spec | None, Places, str, list[str]]:
    """Return the specification (None: that of the existing experiment), the state root, the
    experiment's name, and the command with which a leader runs it.
    """
    words = ["--trials", str(trials)] if trials else []
    words += [word for change in changes or () for word in ("--set", change)]
    file = Path(experiment)
    if not (file.suffix in (".yaml", ".yml") or file.is_file()):
        if name is not None:
            raise UserError("--name goes with a file; an experiment's name cannot be changed here")
        places = Places.at(state)
        places.known(experiment)
        words += ["--state", places.root]
        changed = None
        if changes:
            from regrow.infra.state.spec_file import changed_spec
            from regrow.infra.state.yaml_file import set_values

            changed = changed_spec(places, experiment, set_values(changes))
        return changed, places, experiment, ["resume", experiment, *words]
    from regrow.cli.spec_file import located_in, named, read

    spec = read(file, trials, changes=changes)
    with located_in(file):
        spec = named(spec, name)
    places = Places.at(state or spec.state)
    words += ["--state", places.root, "--name", spec.name]
    return spec, places, spec.name, ["run", str(file.resolve()), *words]


def _labels(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        key, mark, value = part.partition("=")
        if not (mark and _LABEL.fullmatch(key.strip()) and _LABEL.fullmatch(value.strip())):
            raise UserError(
                f"--labels {part!r}: write KEY=VALUE of letters, digits and -_./, as zone=eu-1"
            )
        found[key.strip()] = value.strip()
    return found


def _span(name: str, text: str) -> float:
    """Return an option's duration in seconds, as a user wrote it. Raises UserError."""
    found = seconds(text)
    if not isinstance(found, float):
        raise UserError(f"{name} {text!r}: write a duration, as 90min or 4h")
    if found > LONGEST:
        raise UserError(f"{name} {text!r}: is longer than 100 years; leave it out")
    return found


def _walltime(text: str) -> float:
    from regrow.apps.agent.notices import ENDS_SECONDS

    found = _span("--walltime", text)
    if found < LEAST_SECONDS:
        raise UserError(
            f"--walltime {text!r}: an agent leaves {ENDS_SECONDS:g} s before its machine ends, and"
            f" needs time to begin; give at least {LEAST_SECONDS:g}s"
        )
    return found
