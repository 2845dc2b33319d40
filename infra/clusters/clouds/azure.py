"""The documents that Microsoft Azure and its machines get for fleets of agents. Pure.

One scale set for each group of workers: Azure itself restores a machine that it has taken away. A
set whose machines come on need is made larger, and a machine of it that is idle leaves it. The
variables of the agents are in the settings of the set that Azure encrypts and never tells again.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from regrow.infra.clusters.clouds import fleet, groups
from regrow.infra.clusters.clouds.fleet import AGENTS_TAG, STATE_TAG, USER_TAG, Bucket, Order
from regrow.infra.clusters.clouds.fleet_export import VALUES
from regrow.infra.clusters.description import Azure
from regrow.infra.clusters.prices import Prices

Json = dict[str, Any]
VERSION, NETWORK_VERSION = "2024-07-01", "2024-05-01"
"""Versions of Azure's interfaces for machines and for networks."""
_RESTORE = {"enabled": True, "restoreTimeout": "PT2H"}
"""For how long Azure tries to restore a spot machine; two hours are the most."""
_TYPE = re.compile(
    r"Standard_(?P<family>[A-Z]+)(?P<size>\d+)(-(?P<fewer>\d+))?(?P<more>[a-z]*)(_(?P<chip>[A-Z][A-Z0-9]*))?(_v\d+)?"
)
parsed = partial(groups.parsed, _TYPE, what="size of Azure's", such="Standard_D4s_v5")
"""Returns the parts of a type's name. Raises SpecError for what is none."""


def name(cluster: Azure, order: Order, place: int) -> str:
    """Return the name of a group's scale set."""
    return f"{fleet.base(cluster, order)}-{place}"


def resource_name(cluster: Azure) -> str:
    """Return the name of the network of a cluster, and of its security group."""
    return f"regrow-{cluster.name}.agents"


def script(
    cluster: Azure, order: Order, prices: Prices, place: int, *, api: str, above: str
) -> str:
    """Return the script that a group's machine runs once, with VALUES in it. Raises SpecError for a
    type that is none.

    Args:
        cluster: the cluster.
        order: the experiment.
        prices: prices per hour.
        place: of the group.
        api: address of Azure's interface.
        above: what all paths of scale sets begin with.

    """
    parsed(cluster.workers[place].type, f"workers.{place}.type")
    sets = [f"{api}{above}/{name(cluster, order, n)}" for n in range(len(cluster.workers))]
    asked = {
        "keys": True,
        "s3": {"region_name": None, "endpoint_url": Bucket.of(order.state).endpoint},
        "api": api,
        "version": VERSION,
        "identity": cluster.identity,
        "here": sets[place],
        "groups": sets,
    }
    if groups.has_elastic_groups(cluster):
        asked["start"] = {
            groups.name(n, one): sets[n]
            for n, one in enumerate(cluster.workers)
            if groups.on_need(cluster, n)
        }
    return fleet.setup(
        cluster,
        order,
        prices,
        place,
        machine="azure_machine",
        asked=asked,
        values=VALUES,
    )


def scale_set(
    cluster: Azure, order: Order, place: int, *, subnet: str, script: str, password: str
) -> Json:
    """Return the body that creates a group's scale set.

    Args:
        cluster: the cluster.
        order: the experiment.
        place: of the group.
        subnet: path of the subnet.
        script: with the values of variables, in base64.
        password: of the machines' user.

    """
    group = cluster.workers[place]
    spot, zones = group.market == "spot", group.zones or cluster.zones
    return groups.template(
        "azure_set",
        region=cluster.region,
        tags=fleet.tags(cluster, order, place) | {STATE_TAG: order.state},
        zones=list(zones) or None,
        identities={cluster.identity: {}},
        type=group.type,
        count=groups.first(cluster, place),
        restore=_RESTORE if spot else None,
        priority="Spot" if spot else "Regular",
        eviction="Delete" if spot else None,
        # At most the price on demand.
        billing={"maxPrice": -1} if spot else None,
        user=cluster.user,
        password=password,
        image={"id": cluster.image} if cluster.image else image(group.type, f"workers.{place}"),
        disk=group.disk,
        subnet=subnet,
        script=script,
    )


def security(cluster: Azure, user: str) -> Json:
    """Return the body that creates the security group: Azure's own rules alone."""
    return groups.template("azure_security", region=cluster.region, tags=shared(cluster, user))


def network(cluster: Azure, user: str, security: str) -> Json:
    """Return the body that creates the network. `security`: path of the security group."""
    tags = shared(cluster, user)
    return groups.template("azure_network", region=cluster.region, tags=tags, security=security)


def shared(cluster: Azure, user: str) -> dict[str, str]:
    """Return the tags of what all experiments share."""
    return {AGENTS_TAG: cluster.name, USER_TAG: user}


def image(instance: str, path: str) -> Json:
    """Return the current Ubuntu image for a type, with NVIDIA's drivers if it has GPUs."""
    found = parsed(instance, path)
    if found["family"].startswith("N"):
        return _image("microsoft-dsvm", "ubuntu-hpc", "2204")
    return _image(
        "canonical", "ubuntu-24_04-lts", "server-arm64" if "p" in found["more"] else "server"
    )


def _image(publisher: str, offer: str, sku: str) -> Json:
    return {"publisher": publisher, "offer": offer, "sku": sku, "version": "latest"}
