"""The launcher file's parts for Microsoft Azure, safe where Ray's defaults are not, as far as Ray's
templates allow. Pure.

Ray's defaults: machines that are stopped, not deleted, and a data-science image. Its templates
allow SSH from everywhere, and give all machines of the cluster the role Contributor of the resource
group: the file cannot change that.
"""

from __future__ import annotations

import re
from typing import Any

from regrow.infra.clusters.clouds import groups
from regrow.infra.clusters.description import Azure, Head, Workers
from regrow.infra.clusters.launcher import Site
from regrow.infra.clusters.prices import Prices
from regrow.search.errors import SpecError

Json = dict[str, Any]
OFF = "python -m regrow.infra.clusters.clouds.ending azure; $(command -v sudo) shutdown -h now"
"""Deletes a machine: one that is only shut down still costs."""
_TYPE = re.compile(
    r"Standard_(?P<family>[A-Z]+)(?P<size>\d+)(-(?P<fewer>\d+))?(?P<more>[a-z]*)(_(?P<chip>[A-Z][A-Z0-9]*))?(_v\d+)?"
)
_GPUS = {
    ("NC", "T4"): {4: 1, 8: 1, 16: 1, 64: 4},
    ("NC", "A100"): {24: 1, 48: 2, 96: 4},
    ("NC", "H100"): {40: 1, 80: 2},
    ("ND", None): {96: 8},
    ("ND", "A100"): {96: 8},
    ("ND", "H100"): {96: 8},
    ("NC", None): {6: 1, 12: 2, 24: 4},
    ("NV", "A10"): {36: 1, 72: 2},
}
"""GPUs by series, chip and CPUs, for sizes with whole NVIDIA GPUs."""
_GIB_A_CPU = {"D": 4, "E": 8, "F": 2}


def site(cluster: Azure, prices: Prices, key: str) -> Site:
    """Return the launcher file's parts. `key`: the private key's file. Raises SpecError."""
    tags = {"regrow-cluster": cluster.name}

    def machine(one: Head | Workers, path: str) -> Json:
        wanted = {"imageId": cluster.image} if cluster.image else image(one.type, path)
        parameters = {"vmSize": one.type, **wanted, "osDiskSize": one.disk}
        if isinstance(one, Workers) and one.market == "spot":
            # Pay at most the on-demand price of the machine.
            price = {"billingProfile": {"maxPrice": -1}}
            parameters |= {"priority": "Spot", "evictionPolicy": "Delete", **price}
        if isinstance(one, Workers) and one.zones:
            parameters["availability_zone"] = ",".join(one.zones)
        return {"azure_arm_parameters": parameters, "tags": dict(tags)}

    provider: Json = {
        "location": cluster.region,
        "resource_group": cluster.resource_group,
        "tags": tags,
    }
    if cluster.subscription is not None:
        provider["subscription_id"] = cluster.subscription
    if cluster.zones:
        provider["availability_zone"] = ",".join(cluster.zones)
    return groups.site(
        cluster,
        prices,
        key,
        provider=provider,
        machine=machine,
        resources=resources,
        off=OFF,
        auth={"ssh_public_key": f"{key}.pub"},
    )


def image(instance: str, path: str) -> Json:
    """Return the current Ubuntu image for a type, with NVIDIA's drivers if it has GPUs."""
    found = _parsed(instance, path)
    if found["family"].startswith("N"):
        return _image("microsoft-dsvm", "ubuntu-hpc", "2204")
    return _image(
        "canonical", "ubuntu-24_04-lts", "server-arm64" if "p" in found["more"] else "server"
    )


def resources(instance: str, path: str) -> Json:
    """Return what Ray may use of a machine type: CPU, GPU, memory in bytes. Raises SpecError."""
    found = _parsed(instance, path)
    family, size = found["family"], int(found["size"])
    counted: Json = {"CPU": int(found["fewer"] or size)}
    if family.startswith("N"):
        gpus = _GPUS.get((family, found["chip"]), {}).get(size)
        if gpus is None:
            problem = "is a type of which it is not known how many GPUs it has"
            raise SpecError(path, instance, problem, "choose another")
        counted["GPU"] = gpus
    elif family in _GIB_A_CPU and "l" not in found["more"]:  # "l": less memory
        counted["memory"] = int(groups.FOR_TASKS * (_GIB_A_CPU[family] << 30) * size)
    return counted


def _image(publisher: str, offer: str, sku: str) -> Json:
    return {
        "imagePublisher": publisher,
        "imageOffer": offer,
        "imageSku": sku,
        "imageVersion": "latest",
    }


def _parsed(instance: str, path: str) -> re.Match[str]:
    found = _TYPE.fullmatch(instance)
    if found is None:
        hint = 'write one such as "Standard_D4s_v5"'
        raise SpecError(path, instance, "is no size of Azure's", hint)
    return found
