"""Fleets of agents in a cloud: what their machines get. Pure.

For each group of workers the cloud itself keeps `most` machines: a fleet on AWS, an instance group
on Google Cloud, a scale set on Azure. Of groups on demand beside spot machines the leader starts
more as attempts wait for them; see `search/planning/sizes.py`. A machine makes itself an agent
(`regrow join`) by a script that it runs at its first start, which holds no secret. Its files are in
the state's bucket.
"""

from __future__ import annotations

import base64
import getpass
import gzip
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from regrow.infra.clusters import shipping
from regrow.infra.clusters.clouds import groups
from regrow.infra.clusters.clouds.fleet_machine import PARCEL
from regrow.infra.clusters.clouds.own_fleet import FLEET
from regrow.infra.clusters.description import OnVms
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.project import tarred
from regrow.infra.ray import scaling
from regrow.infra.state.places import Places
from regrow.infra.stores.keys import CONFIDENTIAL
from regrow.infra.stores.s3 import is_s3
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError

Json = dict[str, Any]
AGENTS_TAG, EXPERIMENT_TAG, GROUP_TAG = "regrow-agents", "regrow-experiment", "regrow-group"
"""Tags of all that belongs to fleets of agents: the cluster's name, the experiment, the group."""
STATE_TAG, USER_TAG, EXPIRY_TAG = "regrow-state", "regrow-user", "regrow-expires"
"""Tags with the root of the experiment's state, who submitted it, and when all of it ends."""
MOST_PROJECT = 100_000_000
"""Bytes of a packed project."""
MOST_TAG = 256
"""Characters of a tag's value that AWS and Azure allow."""
SCRIPT = "fleets.sh"
"""Name of the script among files for use without regrow."""
_END = "END_OF_FILE"
_SETUP = """\
#!/bin/bash
# Makes this machine an agent of the experiment {experiment}. Written by regrow.
export HOME=/root{exported}
user={user}
id "$user" > /dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
home=$(getent passwd "$user" | cut -d: -f6)
there="$home"/{there}
python={python}
[ -e "$there/prepared" ] && exit 0  # this start is not the first one
mkdir -p "$there/project" && cd "$there" || exit 1
cat > fleet.json <<'{end}'
{fleet}
{end}
base64 -d <<'{end}' | gzip -d > machine.py
{machine}{end}
base64 -d <<'{end}' | gzip -d > cloud.py
{cloud}{end}
{values}cat > regrow-agent.service <<{end}
[Unit]
Description=An agent of the experiment {experiment}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User=$user
ExecStart=/bin/bash "$there/agent.sh" {arguments}
ExecStopPost=+systemd-run --collect --no-block "$python" \\
  "$there/machine.py" ended \\$EXIT_STATUS
Restart=on-failure
RestartPreventExitStatus=2 3 4
RestartSec=10
KillMode=mixed
TimeoutStopSec=90
OOMPolicy=continue
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=multi-user.target
{end}
{before}(
  set -e
{install}  "$python" machine.py fetch
  tar -xzf parcel.tar.gz --no-same-owner
  tar -xzf project.tar.gz -C project --no-same-owner
  chown -R "$user" "$there" && chown root *.py fleet.json *.service
  runuser -u "$user" -- env HOME="$home" bash -l prepare.sh
) > prepare.log 2>&1
if [ $? = 0 ]; then
  touch prepared
  systemctl enable --now "$there/regrow-agent.service"
else
  cat prepare.log
  "$python" machine.py ended 2
fi
"""
_INSTALL = """\
  python3 -c 'import botocore, pip' 2> /dev/null || {
    export DEBIAN_FRONTEND=noninteractive
    wait="-o DPkg::Lock::Timeout=600"
    apt-get $wait update -qq && apt-get $wait install -y -qq python3-botocore python3-pip
  }
"""
_EXPIRY = """\
# The cloud itself has no end for the machines.
cat > regrow-expiry.service <<{end}
[Service]
ExecStart="$python" "$there/machine.py" ended 0
{end}
cat > regrow-expiry.timer <<{end}
[Timer]
OnCalendar={calendar}
Persistent=true
[Install]
WantedBy=timers.target
{end}
systemctl enable "$there/regrow-expiry.service"
systemctl enable --now "$there/regrow-expiry.timer"
[ "$(date +%s)" -lt {expires} ] || exec "$python" machine.py ended 0
"""
_REGROW = """\
# `regrow`, as this machine's agent runs it.
there={there}
cd "$there/project"
export {fleet}="$there"{exported}
. "$there/environment"
export PATH="$(dirname {python}):$PATH"
exec {python} -m regrow "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where an experiment's state is: a bucket, the prefix of the root in it ("": none), and the
    address of the server (None: Amazon's).
    """

    name: str
    prefix: str
    endpoint: str | None = None

    @classmethod
    def of(cls, root: str) -> Bucket:
        """Return the bucket of a state root in its canonical form. Raises UserError for a root that
        is in none.
        """
        if not is_s3(root):
            raise UserError(
                f"--state: {root} is in no bucket, from which the machines get their files; give"
                " --state s3://BUCKET/PREFIX"
            )
        parts = urlsplit(root)
        (endpoint,) = parse_qs(parts.query).get("endpoint_url", [None])
        return cls(name=parts.netloc, prefix=parts.path.strip("/"), endpoint=endpoint)

    def folder(self, cluster: str, order: Order) -> str:
        """Return the key of the folder for the objects of fleets."""
        above = f"{self.prefix}/" if self.prefix else ""
        return f"{above}{order.experiment}/{objects(cluster, order)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An experiment for fleets of agents.

    Attributes:
        experiment: its name.
        state: root of its state.
        words: arguments of `regrow` with which an agent joins it in the project's folder.
        user: who submits it.
        expires: when the fleets and their machines end at the latest, in ISO 8601. Also tells them
            from those that were submitted before.
        endpoint: address of AWS's interfaces; None: Amazon's own.

    """

    experiment: str
    state: str
    words: Sequence[str]
    user: str
    expires: str
    endpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudFleet:
    """A fleet, instance group or scale set that starts machines.

    Attributes:
        id: the cloud's name of it.
        experiment: whose agents its machines are.
        group: name of the group of workers.
        most: machines that it keeps.
        running: machines that it has now.

    """

    id: str
    experiment: str
    group: str
    most: int
    running: int


class FleetAccount(Protocol):
    """A cloud account, as seen by the fleets of one cluster file. Methods that ask the cloud raise
    RegrowError, with the cloud's message, for what it refused.
    """

    place: str
    """Where the machines are, for people."""

    def exported(self, order: Order) -> str:
        """Return variables that name the cloud, as arguments of the shell's `export`."""

    def check(self, order: Order, prices: Prices) -> None:
        """Check for mistakes without asking the cloud. Raises SpecError and UserError."""

    def files(self, order: Order, prices: Prices, parcel: bytes) -> dict[str, bytes]:
        """Return files, and a script that starts fleets by them. Without values of variables."""

    def prepare(self, order: Order, prices: Prices, say: Callable[[str], None]) -> None:
        """Create what fleets need, whatever an earlier try has left. Raises SpecError."""

    def start(self, order: Order, prices: Prices, environment: bytes) -> list[str]:
        """Create a fleet for each group, and return their names. `environment`: the file of the
        agents' variables, which may be secret.
        """

    def fleets(self) -> list[CloudFleet]:
        """Return the fleets that start machines."""

    def submitted(self) -> list[tuple[str, str, float]]:
        """Return experiment, state root and time (seconds since the epoch) of what was submitted,
        as far as the cloud has it, the newest last.
        """

    def end(self, say: Callable[[str], None]) -> None:
        """End all machines and delete what was created. Raises RegrowError for the rest."""


def objects(cluster: str, order: Order | None = None) -> str:
    """Return the key, below the experiment, of the folder for a cluster's fleets: of one order, or
    of all.
    """
    above = f"{CONFIDENTIAL}fleet/{cluster}"
    return above if order is None else f"{above}/{re.sub('[^0-9T]', '', order.expires)}"


def base(cluster: OnVms, order: Order) -> str:
    """Return the beginning of names for what is made for an order. At most 57 characters."""
    identity = f"{order.experiment}\n{order.state}\n{order.expires}"
    return f"regrow-{cluster.name}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def tags(cluster: OnVms, order: Order, place: int) -> dict[str, str]:
    """Return the tags of a group's fleet, machines and disks."""
    return {
        AGENTS_TAG: cluster.name,
        EXPERIMENT_TAG: order.experiment,
        GROUP_TAG: groups.name(place, cluster.workers[place]),
        USER_TAG: order.user,
        EXPIRY_TAG: order.expires,
    }


def setup(
    cluster: OnVms,
    order: Order,
    prices: Prices,
    place: int,
    *,
    machine: str,
    asked: Mapping[str, Any],
    exported: str = "",
    values: str = "",
    expires: bool = True,
) -> str:
    """Return the script that a group's machine runs at its first start.

    Args:
        cluster: the cluster.
        order: the experiment.
        prices: prices per hour.
        place: of the group.
        machine: module of the cloud for machines, such as aws_machine.
        asked: what `machine` needs to know.
        exported: variables of the cloud, as arguments of the shell's `export`.
        values: what stands for the values of variables, in base64; empty: the machine gets them.
        expires: whether a machine ends what is left at the order's end; False: the cloud does.

    """
    bucket = Bucket.of(order.state)
    fleet = {
        "bucket": bucket.name,
        "folder": bucket.folder(cluster.name, order),
        "experiment": order.experiment,
        "state": order.state,
        "group": groups.name(place, cluster.workers[place]),
        "on_need": groups.on_need(cluster, place),
        **asked,
    }
    if groups.has_elastic_groups(cluster):
        fleet["idle"] = cluster.idle
        fleet["python"] = cluster.python or "/usr/bin/python3"
        fleet["sizes"] = [[one.name, one.market, one.most] for one in groups.of(cluster)]
    before = ""
    if expires:
        ends = datetime.fromisoformat(order.expires)
        calendar = f"{ends:%Y-%m-%d %H:%M:%S} UTC"
        before = _EXPIRY.format(end=_END, calendar=calendar, expires=int(ends.timestamp()))
    return _SETUP.format(
        experiment=order.experiment,
        exported=f" {exported}" if exported else "",
        user=shlex.quote(cluster.user),
        there=there(cluster),
        arguments=_arguments(cluster, prices, place),
        python=shlex.quote(cluster.python or "/usr/bin/python3"),
        fleet=json.dumps(fleet, indent=1),
        machine=_source("fleet_machine"),
        cloud=_source(machine),
        values=f"(umask 077; echo {values} | base64 -d > environment)\n" if values else "",
        before=before,
        install="" if cluster.python else _INSTALL,
        end=_END,
    )


def parcel(cluster: OnVms, order: Order, project: bytes, exported: str = "") -> bytes:
    """Return the agent's files as a tar.gz, always the same bytes, without values of variables.

    `project`: the packed folder of the project. `exported`: see `setup`.
    """
    folder, shipped = f'"$HOME"/{there(cluster)}', shipping.shipped(cluster)
    python = shlex.quote(cluster.python) if cluster.python else f"{folder}/env/bin/python"
    prepare = ["set -e", f"cd {folder}", *cluster.setup]
    if shipped:
        made_from = hashlib.sha256(b"".join(shipped.values())).hexdigest()[:16]
        prepare.append(shipping.environment_script(there(cluster), made_from))
    variables = [exported, _scaling(cluster)]
    regrow = _REGROW.format(
        there=folder,
        python=python,
        fleet=FLEET,
        exported="".join(f" {one}" for one in variables if one),
    )
    files = {
        **shipped,
        "project.tar.gz": project,
        "prepare.sh": "".join(f"{line}\n" for line in prepare).encode(),
        "regrow.sh": regrow.encode(),
        "agent.sh": f'exec bash {folder}/regrow.sh {shlex.join(order.words)} "$@"\n'.encode(),
    }
    return gzip.compress(tarred(dict(sorted(files.items())), mode=0o644), mtime=0)


def environment(values: Mapping[str, str]) -> bytes:
    """Return the shell's file of the agent's variables."""
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in values.items()
    ).encode()


def send(places: Places, cluster: OnVms, order: Order, name: str, content: bytes) -> None:
    """Put an object for the machines into the bucket."""
    folder = objects(cluster.name, order)
    places.store(order.experiment).create(f"{folder}/{name}", content)


def forget(places: Places, experiment: str, cluster: str) -> None:
    """Delete the objects of a cluster's fleets for an experiment."""
    store = places.store(experiment)
    store.delete(store.list(f"{objects(cluster)}/"), ordered=False)


def check_keys(cluster: OnVms) -> None:
    """Raise SpecError for a cluster whose machines could not read the bucket."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if name not in cluster.env:
            hint = f"add {name}: ${name} to `env`"
            problem = "lacks what the machines read the bucket with"
            raise SpecError("env", sorted(cluster.env), problem, hint)


def check_user(cluster: OnVms, user: str, what: str) -> None:
    """Raise SpecError if `what` belongs to a cluster of the same name of another user."""
    if user != getpass.getuser():
        problem = f"is a cluster of {user}'s ({what} in {cluster.region})"
        raise SpecError("name", cluster.name, problem, "write another name")


def copied(order: Order, cluster: OnVms) -> str:
    """Return a command that puts the parcel into the bucket."""
    bucket = Bucket.of(order.state)
    place = f"s3://{bucket.name}/{bucket.folder(cluster.name, order)}/{PARCEL}"
    other = ("--endpoint-url", bucket.endpoint) if bucket.endpoint else ()
    return shlex.join(("aws", "s3", "cp", *other, PARCEL, place))


def there(cluster: OnVms) -> str:
    """Return the folder on the machines, below the home folder."""
    return f".local/share/regrow/nodes/{cluster.name}"


def _arguments(cluster: OnVms, prices: Prices, place: int) -> str:
    """Return the arguments of `regrow join` that a group's machines have: their market and price
    reach the trials' costs as labels.
    """
    group = cluster.workers[place]
    labels = groups.labels(prices, cluster.region, group.type, group.market)
    given = f"--labels {','.join(f'{key}={value}' for key, value in labels.items())}"
    return f"{given} --spot" if group.market == "spot" else given


def _scaling(cluster: OnVms) -> str:
    """Return variables from which a driver knows the machines that may come, as arguments of the
    shell's `export`.
    """
    if not groups.has_elastic_groups(cluster):
        return ""
    most = dict.fromkeys(("spot", "on-demand"), 0)
    for one in cluster.workers:
        most[one.market] += one.most
    counts = ",".join(f"{market}={count}" for market, count in most.items())
    return f"{scaling.MARKETS}={','.join(most)} {scaling.MACHINES}={counts}"


def _source(module: str) -> str:
    """Return a module, packed: EC2 takes no more than 16 KiB for all."""
    source = Path(__file__).with_name(f"{module}.py").read_bytes()
    return base64.encodebytes(gzip.compress(source, mtime=0)).decode()
