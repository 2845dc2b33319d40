"""A cluster as a SkyPilot task, for users who prefer SkyPilot: one file and what it ships. SkyPilot
itself is not needed here.

Each machine of the task is an agent. A SkyPilot cluster has machines of one kind, and a fixed
number of them, and the market does not change while it runs. If the cluster is lost, a managed job
(`sky jobs launch`) starts again on the next available kind, and the agents continue the experiment.
"""

from __future__ import annotations

import hashlib
import shlex
from typing import Any

import yaml

from regrow.infra.clusters import shipping
from regrow.infra.clusters.clouds.fleet import there
from regrow.infra.clusters.description import Cluster, OnVms, Workers
from regrow.tasks.errors import UserError

Json = dict[str, Any]
FILE = "sky.yaml"
_HEADING = """\
# A task of SkyPilot, for any number of experiments, one after the other:
#   sky jobs launch {file} --env EXPERIMENT=sweep.yaml --env STATE=s3://BUCKET/PREFIX{secrets}
# from the project's folder. EXPERIMENT is in there; the state has to be in a bucket.
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
    data = task(cluster)
    heading = _HEADING.format(
        file=FILE, secrets="".join(f" --secret {name}" for name in data.get("secrets", {}))
    )
    text: str = yaml.dump(data, Dumper=_BlockDumper, sort_keys=False, width=1000)
    return {FILE: (heading + text).encode(), **shipping.shipped(cluster)}


def task(cluster: OnVms) -> Json:
    """Return the task as plain data."""
    shipped, folder = shipping.shipped(cluster), there(cluster)
    setup = ["set -eu", *cluster.setup]
    if shipped:
        made_from = hashlib.sha256(b"".join(shipped.values())).hexdigest()[:16]
        setup.append(shipping.environment_script(folder, made_from))
    python = shlex.quote(cluster.python) if cluster.python else f'"$HOME"/{folder}/env/bin/python'
    values = {name: value for name, value in cluster.env.items() if not value.startswith("$")}
    found: Json = {
        "name": cluster.name,
        "workdir": ".",
        "num_nodes": max(group.most for group in cluster.workers),
        "resources": {
            "autostop": {"idle_minutes": 10, "down": True},
            "ordered": [one for group in cluster.workers for one in _kinds(cluster, group)],
        },
        "envs": {**values, "EXPERIMENT": None, "STATE": None},
        "secrets": dict.fromkeys(name for name in cluster.env if name not in values),
        "file_mounts": {f"~/{folder}/{one}": f"./{one}" for one in shipped},
        "setup": "\n".join(setup) + "\n",
        "run": f'exec {python} -m regrow join "$EXPERIMENT" --state "$STATE"\n',
    }
    return {key: value for key, value in found.items() if value != {}}


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


class _BlockDumper(yaml.SafeDumper):
    """Writes scripts as blocks of lines."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_BlockDumper.add_representer(str, _text)
