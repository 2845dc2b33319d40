"""What a machine gets by SSH for its agent: a script, a unit of systemd that runs it, the project,
the values of `env`, and what its environment is made from. All of it is one archive, on the input
of one command; no value stands in a command line.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regrow.infra.clusters import project, shipping
from regrow.infra.clusters.agents import AgentWork, Submission
from regrow.infra.clusters.description import Ssh
from regrow.infra.clusters.folder import variables
from regrow.infra.clusters.unit import (
    FINAL,
    LEAVE_SECONDS,
    MARK,
    NAMED,
    NOT_READY,
    PLACE,
    service,
)

ENVIRONMENT = "env"
"""The newest environment of a machine, below the cluster's folder: a link."""
_MOST_BYTES = 100_000_000
"""Ray takes no larger project, packed, and the leader's driver gives it to the others."""
_TIME = 1_577_836_800
"""Time of all files in the archive, in seconds since the epoch: old enough for clocks that differ,
and not so old that tar warns of it.
"""
_SCRIPT = """#!/bin/sh
# An agent of the experiment {experiment}.
need() {{ test "$1" "$2" || {{ echo "regrow: $2 is not there yet"; exit {not_ready}; }}; }}
# Soon after a boot there may be no network yet: no state, and no address of this machine's.
booting() {{ read -r up rest < /proc/uptime && [ "${{up%%.*}}" -lt {boot} ]; }}
routed() {{ awk '$2 == "00000000" {{ found = 1 }} END {{ exit !found }}' /proc/net/route; }}
while booting && ! routed; do sleep 1; done
need -f "$HOME"/{base}/environment
{state}set -a; . "$HOME"/{base}/environment; set +a
cd "$HOME"/{folder}/{project} || exit {not_ready}
export PATH="$(dirname {python}):$PATH" {mark}={cluster} {named}={name}
exec {python} -P -m regrow {words}
"""
_UNIT = """{heading}[Unit]
Description=An agent of the experiment {experiment}, by regrow ({cluster})
StartLimitIntervalSec=0

[Service]
ExecStart=/bin/sh "%h/{folder}/agent.sh"
# The experiment has ended, or this machine cannot take part: no start with the machine either.
ExecStopPost=/bin/sh -c {stopped}
Restart=on-failure
RestartPreventExitStatus={prevent}
RestartSec=10
# SIGTERM to the agent alone, which ends its own processes; its trials save first.
KillMode=mixed
TimeoutStopSec={seconds:.0f}
UMask=0077
StandardOutput=append:%h/{folder}/%H.log
StandardError=inherit

[Install]
WantedBy=default.target
"""


def base(cluster: Ssh) -> str:
    """Return the cluster's folder on a machine, below the home folder."""
    return f"{PLACE}/{cluster.name}"


def python(cluster: Ssh, made: str = ENVIRONMENT) -> str:
    """Return the interpreter on a machine, quoted for its shell. `made`: where its environment is,
    below the cluster's folder.
    """
    if cluster.python:
        return shlex.quote(cluster.python)
    return f'"$HOME"/{base(cluster)}/{made}/bin/python'


def command(cluster: Ssh, rest: str, made: str = ENVIRONMENT) -> str:
    """Return a command of `unit.py` for a shell on a machine."""
    return f"{python(cluster, made)} -P -m regrow.infra.clusters.unit {cluster.name} {rest}"


def unit_name(of: AgentWork | Submission) -> str:
    """Return the name of an experiment's units. That of an equal name in another state differs."""
    return f"{of.experiment}.{hashlib.sha256(of.state.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What a machine gets.

    Attributes:
        archive: a tar.
        made: the folder with what the environment is made from, below the cluster's; None: the
            machines have one.
        stamp: tells an environment from one that is made from other packages.

    """

    archive: bytes
    made: str | None
    stamp: str


def packed(cluster: Ssh, work: AgentWork, say: Callable[[str], None]) -> Package:
    """Return all that a machine gets. `say` names the confidential files of the project, which stay
    here. Raises UserError for a project that is too large, or packages that machines cannot get.
    """
    here, sent = f"units/{unit_name(work)}", _project(work, say)
    into = f"project-{_hash(sent)}"
    shipped = shipping.shipped(cluster)
    stamp = _hash(b"".join(shipped.values()))
    made = f"made-{stamp}" if shipped else None
    values = variables(cluster, os.environ)
    environment = "".join(f'{name}="{_escaped(value)}"\n' for name, value in values.items())
    files = {
        **{f"{made}/{name}": content for name, content in shipped.items()},
        "environment": environment.encode(),
        f"{here}/agent.sh": script(cluster, work, into, made and f"{made}/env").encode(),
        f"{here}/{service(cluster.name, unit_name(work))}": unit(cluster, work).encode(),
        f"{here}/{into}.tar.gz": sent,
    }
    archive = project.tarred(files, mode=0o600, time=_TIME)
    return Package(archive=archive, made=made, stamp=stamp)


def install(cluster: Ssh, parcel: Package, rest: str) -> str:
    """Return a shell command that takes a parcel from its input, makes the environment, and runs a
    command of `unit.py` in it.
    """
    place = f'"$HOME"/{base(cluster)}'
    # Machines may share the folder.
    lock = "{ ! command -v flock >/dev/null || flock 9; }"
    steps = ["set -e; umask 077", f"mkdir -p {place}", f"tar -x -C {place}", *cluster.setup]
    made = ENVIRONMENT
    if parcel.made is not None:
        made = f"{parcel.made}/env"
        make = shipping.environment_script(f"{base(cluster)}/{parcel.made}", parcel.stamp)
        steps += [
            f"( {lock} && {make} ) 9> {place}/{parcel.made}/lock 1>&2",
            f"ln -sfn {made} {place}/{ENVIRONMENT}",
        ]
    return "\n".join([*steps, command(cluster, rest, made)])


def _project(work: AgentWork, say: Callable[[str], None]) -> bytes:
    """Return the packed project, without the state. Raises as `packed`."""
    state, left_out = Path(work.state), list[str]()
    if state.is_relative_to(work.project):
        left_out = [f"{state.relative_to(work.project).as_posix()}/"]
    return project.packed(work.project, say, most=_MOST_BYTES, of="Ray takes", left_out=left_out)


def script(
    cluster: Ssh, work: AgentWork, project: str = "project", made: str | None = ENVIRONMENT
) -> str:
    """Return the script that a unit runs. `project`: the folder of the project below its own."""
    words = [*work.words]
    words += [] if cluster.cpus is None else ["--cpus", str(cluster.cpus)]
    words += [] if cluster.ports is None else ["--ports", cluster.ports]
    # Else an agent would begin anew where a disk is to be mounted.
    state = f"need -d {shlex.quote(work.state)}\n" if os.path.isabs(work.state) else ""
    return _SCRIPT.format(
        experiment=work.experiment,
        folder=f"{base(cluster)}/units/{unit_name(work)}",
        base=base(cluster),
        state=state,
        boot=120,
        not_ready=NOT_READY,
        project=project,
        python=python(cluster, made or ENVIRONMENT),
        mark=MARK,
        cluster=cluster.name,
        named=NAMED,
        name=unit_name(work),
        words=shlex.join(words),
    )


def unit(cluster: Ssh, work: AgentWork, heading: str = "") -> str:
    """Return the unit for systemd."""
    called, cases = service(cluster.name, unit_name(work)), "|".join(map(str, FINAL))
    disable = f"systemctl --user --quiet --no-reload disable {called}"
    return _UNIT.format(
        heading=heading,
        experiment=work.experiment,
        cluster=cluster.name,
        folder=f"{base(cluster)}/units/{unit_name(work)}",
        stopped=f"'case \"$$EXIT_STATUS\" in {cases}) exec {disable};; esac'",
        prevent=" ".join(str(code) for code in FINAL if code),
        seconds=LEAVE_SECONDS,
    )


def files(cluster: Ssh, work: AgentWork) -> dict[str, str]:
    """Return script and unit for people who start the agents by themselves, with a heading that
    says what to type.
    """
    called = service(cluster.name, unit_name(work))
    there = f"~/{base(cluster)}/units/{unit_name(work)}"
    values = ", ".join(cluster.env) or "it may be empty"
    lines = [
        "On each machine:",
        f"  mkdir -p {there} ~/.config/systemd/user",
        f"  copy {work.project} to {there}/project, agent.sh to {there},",
        "  and this file to ~/.config/systemd/user",
        f'  write ~/{base(cluster)}/environment, NAME="value" a line ({values}), and chmod 600 it',
    ]
    if cluster.python is None:
        lines.append(f"  make an environment with regrow in ~/{base(cluster)}/env")
    if os.path.isabs(work.state):
        lines.append(f"  mkdir -p {shlex.quote(work.state)}")
    lines += [
        "  loginctl enable-linger   # it starts with the machine, and stays without a login",
        f"  systemctl --user daemon-reload; systemctl --user enable --now {called}",
        f"Without systemd: sh {there}/agent.sh, again after each exit code but 0, 1 and 2.",
    ]
    heading = "".join(f"# {line}\n" for line in lines)
    return {"agent.sh": script(cluster, work), called: unit(cluster, work, heading)}


def _escaped(value: str) -> str:
    """Return a value for double quotes, as shells and systemd read them."""
    return "".join(f"\\{one}" if one in '"\\$`' else one for one in value)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
