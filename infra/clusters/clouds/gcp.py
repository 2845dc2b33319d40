"""The documents that Google Cloud and its machines get for fleets of agents. Pure.

One regional instance group for each group of workers: the group itself replaces a machine that is
taken away. A group whose machines come on need is made larger, and a machine of it that is idle
leaves it. The variables of the agents are a secret of the Secret Manager, which the machines'
service account may read.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from regrow.infra.clusters.clouds import fleet, groups
from regrow.infra.clusters.clouds.fleet import AGENTS_TAG, STATE_TAG, Bucket, Order
from regrow.infra.clusters.description import Gcp
from regrow.infra.clusters.prices import Prices

Json = dict[str, Any]
_UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-{}"
_LEARNING = (
    "projects/deeplearning-platform-release/global/images/family/"
    "common-cu129-ubuntu-2404-nvidia-580"
)
_TYPE = re.compile(
    r"(?P<family>[a-z]\d+[a-z]?)-(?P<kind>[a-z]+)-(?P<size>\d+)(?P<gpus>g)?(-lssd|-metal)?"
)
parsed = partial(groups.parsed, _TYPE, what="type of Compute Engine's", such="n2-standard-4")
"""Returns the parts of a type's name. Raises SpecError for what is none."""
_ARM = frozenset({"t2a", "c4a", "n4a"})
_WITH_GPUS = frozenset({"g2", "g4"})


def compute(cluster: Gcp, api: str) -> str:
    """Return the address of the project in Compute Engine. `api`: that of Compute Engine."""
    return f"{api}/projects/{cluster.project}"


def managers(cluster: Gcp, api: str) -> str:
    """Return the address of the region's instance groups."""
    return f"{compute(cluster, api)}/regions/{cluster.region}/instanceGroupManagers"


def secrets(cluster: Gcp, api: str) -> str:
    """Return the address of the project's secrets. `api`: that of the Secret Manager."""
    return f"{api}/v1/projects/{cluster.project}/secrets"


def name(cluster: Gcp, order: Order, place: int) -> str:
    """Return the name of a group's template and of its instance group."""
    return f"{fleet.base(cluster, order)}-{place}"


def tag(cluster: Gcp) -> str:
    """Return the network tag of the machines."""
    return f"regrow-{cluster.name}"


def template(
    cluster: Gcp, order: Order, prices: Prices, place: int, *, apis: tuple[str, str]
) -> Json:
    """Return the body of instanceTemplates.insert for a group. Raises SpecError for a type that is
    none. `apis`: the addresses of Compute Engine and of the Secret Manager.
    """
    group = cluster.workers[place]
    found = parsed(group.type, f"workers.{place}.type")
    gpus = found["gpus"] or found["family"] in _WITH_GPUS
    scheduling = None
    if group.market == "spot":
        scheduling = groups.template("gcp_spot")
    elif gpus:
        scheduling = groups.template("gcp_gpus")
    there = managers(cluster, apis[0])
    asked = {
        "keys": True,
        "s3": {"region_name": None, "endpoint_url": Bucket.of(order.state).endpoint},
        "secret": f"{secrets(cluster, apis[1])}/{fleet.base(cluster, order)}",
        "here": f"{there}/{name(cluster, order, place)}",
        "groups": [f"{there}/{name(cluster, order, n)}" for n in range(len(cluster.workers))],
    }
    if groups.has_elastic_groups(cluster):
        asked["start"] = {
            groups.name(n, one): f"{there}/{name(cluster, order, n)}"
            for n, one in enumerate(cluster.workers)
            if groups.on_need(cluster, n)
        }
    script = fleet.setup(
        cluster,
        order,
        prices,
        place,
        machine="gcp_machine",
        asked=asked,
    )
    image = _LEARNING if gpus else _UBUNTU.format("arm64" if found["family"] in _ARM else "amd64")
    return groups.template(
        "gcp_template",
        name=name(cluster, order, place),
        record=record(cluster, order, place),
        type=group.type,
        disk=str(group.disk),
        image=cluster.image or image,
        labels=labels(cluster, order, place),
        tag=tag(cluster),
        account=cluster.service_account,
        scheduling=scheduling,
        script=script,
    )


def manager(cluster: Gcp, order: Order, place: int) -> Json:
    """Return the body of regionInstanceGroupManagers.insert for a group."""
    group = cluster.workers[place]
    zones = [{"zone": f"zones/{zone}"} for zone in group.zones or cluster.zones]
    return groups.template(
        "gcp_group",
        name=name(cluster, order, place),
        record=record(cluster, order, place),
        count=groups.first(cluster, place),
        zones=zones or None,
    )


def firewalls(cluster: Gcp) -> list[Json]:
    """Return the bodies of firewalls.insert: the machines reach each other, nobody else does."""
    return [groups.template(part, tag=tag(cluster)) for part in ("gcp_allow", "gcp_deny")]


def secret(cluster: Gcp) -> Json:
    """Return the body of secrets.create."""
    return {"replication": {"automatic": {}}, "labels": {AGENTS_TAG: cluster.name}}


def readers(cluster: Gcp) -> Json:
    """Return the body of secrets.setIamPolicy: the machines read the secret, and delete it."""
    member = f"serviceAccount:{cluster.service_account}"
    return {"policy": {"bindings": [{"role": "roles/secretmanager.admin", "members": [member]}]}}


def record(cluster: Gcp, order: Order, place: int) -> str:
    """Return the description of what is made for a group, by which it is found again."""
    tags = fleet.tags(cluster, order, place) | {STATE_TAG: order.state}
    return json.dumps(tags, separators=(",", ":"))


def labels(cluster: Gcp, order: Order, place: int) -> dict[str, str]:
    """Return the labels of a group's machines and disks, for bills: in Google's characters."""
    tags = fleet.tags(cluster, order, place)
    return {key: re.sub(r"[^a-z0-9_-]", "-", value.lower())[:63] for key, value in tags.items()}
