"""A cluster as a SkyPilot task, for users who prefer SkyPilot: one file and what it ships. SkyPilot
itself is not needed here.

A SkyPilot cluster has machines of one kind, and a fixed number of them. So the head is one of them,
also on spot, and the market does not change while it runs. If the cluster is lost, a managed job
(`sky jobs launch`) starts again on the next available kind, and the same command resumes the
experiment from its log.
"""

from __future__ import annotations

import math
import shlex
from typing import Any

import yaml

from regrow.infra.clusters.description import Cluster, OnVms, Workers
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.launcher import GCS_PORT, Launcher, Site
from regrow.infra.clusters.provider import DASHBOARD_PORT
from regrow.tasks.errors import UserError

Json = dict[str, Any]
FILE = "sky.yaml"
_SLOTS = "REGROW_SLOTS"
"""As in infra/ray/scaling.py, which is not imported here because it imports Ray."""
_HEADING = """\
# A task of SkyPilot, for any number of experiments, one after the other:
#   sky jobs launch {file} --env EXPERIMENT=sweep.yaml --env STATE=s3://BUCKET/PREFIX{secrets}
# from the project's folder. EXPERIMENT is in there; the state has to be in a bucket. A machine more
# than the largest group has: the first one holds the cluster together, and takes no trials.
"""
_RUN = """\
set -eu
there="$HOME"/{there}
touch "$there/environment"
chmod 600 "$there/environment" "$there/token"
head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
node() {{ {node} "$@"; }}
if [ "$SKYPILOT_NODE_RANK" != 0 ]; then
  until (echo > "/dev/tcp/$head/{port}") 2> /dev/null; do sleep 2; done
  node exec {node} supervise worker -- --address="$head:{port}" --include-log-monitor=false
  exit 0
fi
node start head -- --head --port={port} --num-cpus=0 --num-gpus=0 --dashboard-host=127.0.0.1 \\
  --dashboard-port={dashboard} --include-log-monitor=false --disable-usage-stats
code=0
export {slots}={most} RAY_ADDRESS="$head:{port}"
node exec regrow run "$EXPERIMENT" --state "$STATE" || code=$?
node stop
exit "$code"
"""


def files(cluster: Cluster) -> dict[str, bytes]:
    """Return the task's file, and the files from which the environment is made there, if it is
    made. Raises UserError for clusters that are not in a cloud.
    """
    if not isinstance(cluster, OnVms):
        raise UserError(
            f"--sky: is for clusters on aws, gcp or azure, and {cluster.name} is on {cluster.on};"
            " leave it out"
        )
    return {FILE: _written(cluster), **_launcher(cluster).shipped()}


def task(cluster: OnVms) -> Json:
    """Return the task as plain data."""
    launcher, most = _launcher(cluster), max(group.most for group in cluster.workers)
    there = f"~/{launcher.there}"
    setup = [*cluster.setup, *launcher.environment_commands()]
    values = {name: value for name, value in cluster.env.items() if not value.startswith("$")}
    found: Json = {
        "name": cluster.name,
        "workdir": ".",
        "num_nodes": most + 1,
        "resources": {
            "autostop": {"idle_minutes": math.ceil(cluster.idle / 60), "down": True},
            "ordered": [one for group in cluster.workers for one in _kinds(cluster, group)],
        },
        "envs": {**values, "EXPERIMENT": None, "STATE": None},
        "secrets": dict.fromkeys(name for name in cluster.env if name not in values),
        "file_mounts": {
            f"{there}/token": str(Folder(cluster.name).token_file),
            **{f"{there}/{one}": f"./{one}" for one in launcher.shipped()},
            **cluster.mounts,
        },
        "setup": "\n".join(["set -eu", *setup]) + "\n",
        "run": _RUN.format(
            there=shlex.quote(launcher.there),
            node=launcher.node("").rstrip(),
            port=GCS_PORT,
            dashboard=DASHBOARD_PORT,
            slots=_SLOTS,
            most=most,
        ),
    }
    return {key: value for key, value in found.items() if value != {}}


def _launcher(cluster: OnVms) -> Launcher:
    """Return a launcher that only knows how machines are set up."""
    return Launcher(cluster, Site(provider={}, auth={}, most=0))


def _kinds(cluster: OnVms, group: Workers) -> list[Json]:
    """Return a group's machines, in each of its zones in turn."""
    zones = group.zones or cluster.zones
    places = [f"{cluster.on}/{cluster.region}/{zone}" for zone in zones] or [
        f"{cluster.on}/{cluster.region}"
    ]
    image = {} if cluster.image is None else {"image_id": cluster.image}
    return [
        {
            "infra": place,
            "instance_type": group.type,
            "use_spot": group.market == "spot",
            "disk_size": group.disk,
            **image,
        }
        for place in places
    ]


def _written(cluster: OnVms) -> bytes:
    data = task(cluster)
    heading = _HEADING.format(
        file=FILE, secrets="".join(f" --secret {name}" for name in data.get("secrets", {}))
    )
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=1000)
    return (heading + text).encode()


class _Dumper(yaml.SafeDumper):
    """Writes scripts as blocks of lines."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _text)
