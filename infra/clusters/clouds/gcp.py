"""The launcher file's parts for Google Compute Engine, safe where Ray's defaults are not. Pure.

Ray's defaults: an image that is no longer published, preemptible machines that are stopped, not
deleted, a key for all machines of the project, a head with all rights on storage. Ray supports one
zone, and does not know the resources of a type, so the file states them.
"""

from __future__ import annotations

import re
from typing import Any

from regrow.infra.clusters.clouds import groups
from regrow.infra.clusters.description import Gcp, Head, Workers
from regrow.infra.clusters.launcher import Site
from regrow.infra.clusters.prices import Prices
from regrow.search.errors import SpecError

Json = dict[str, Any]
OFF = "python -m regrow.infra.clusters.clouds.ending gcp; $(command -v sudo) shutdown -h now"
"""Deletes the machine if it has the right to, as the head has. Another machine only stops, and the
head deletes it.
"""
_UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-{}"
_LEARNING = (
    "projects/deeplearning-platform-release/global/images/family/"
    "common-cu129-ubuntu-2404-nvidia-580"
)
_HEAD_ACCOUNT = "ray-autoscaler-sa-v1@{}.iam.gserviceaccount.com"
"""The service account that Ray creates."""
_SCOPES = ["https://www.googleapis.com/auth/compute"]
_TYPE = re.compile(
    r"(?P<family>[a-z]\d+[a-z]?)-(?P<kind>[a-z]+)-(?P<size>\d+)(?P<gpus>g)?(-lssd|-metal)?"
)
_ARM = frozenset({"t2a", "c4a", "n4a"})
_L4 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
"""GPUs of g2-standard by CPUs."""
_CPUS_A_GPU = {"a2": 12, "a3": 26}
_GIB_A_CPU = {"standard": 4, "highmem": 8, "highcpu": 1}


def site(cluster: Gcp, prices: Prices, key: str, public_key: str) -> Site:
    """Return the launcher file's parts. `key`: file of the private key. Raises SpecError."""
    zone = _zone(cluster)

    def machine(one: Head | Workers, path: str) -> Json:
        accounts = scheduling = None
        if isinstance(one, Head):
            accounts = [{"email": _HEAD_ACCOUNT.format(cluster.project), "scopes": _SCOPES}]
        elif one.market == "spot":
            scheduling = groups.template("gcp_spot")
        elif resources(one.type, path).get("GPU"):
            scheduling = groups.template("gcp_gpus")
        return groups.template(
            "gcp",
            name=cluster.name,
            type=one.type,
            disk=one.disk,
            image=cluster.image or image(one.type, path),
            ssh_key=f"{groups.user(cluster)}:{public_key}",
            accounts=accounts,
            scheduling=scheduling,
        )

    provider = {
        "region": cluster.region,
        "availability_zone": zone,
        "project_id": cluster.project,
    }
    return groups.site(
        cluster, prices, key, provider=provider, machine=machine, resources=resources, off=OFF
    )


def image(instance: str, path: str) -> str:
    """Return the current Ubuntu image for a type, with NVIDIA's drivers if it has GPUs."""
    found = _parsed(instance, path)
    if _gpus(found):
        return _LEARNING
    return _UBUNTU.format("arm64" if found["family"] in _ARM else "amd64")


def resources(instance: str, path: str) -> Json:
    """Return what Ray may use of a machine type: CPU, GPU, memory in bytes. Raises SpecError."""
    found = _parsed(instance, path)
    gpus = _gpus(found)
    if found["gpus"]:
        return {"CPU": gpus * _CPUS_A_GPU[found["family"]], "GPU": gpus}
    cpus = int(found["size"])
    counted: Json = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    if found["family"] != "n1" and found["kind"] in _GIB_A_CPU:
        counted["memory"] = int(groups.FOR_TASKS * (_GIB_A_CPU[found["kind"]] << 30) * cpus)
    return counted


def _zone(cluster: Gcp) -> str:
    """Return the cluster's only zone. Raises SpecError if it has not exactly one."""
    hint = f'write one, such as "{cluster.region}-b"; Ray\'s launcher knows one zone on GCP'
    if len(cluster.zones) != 1:
        raise SpecError("zones", list(cluster.zones), "is not one zone", hint)
    for place, group in enumerate(cluster.workers):
        if group.zones not in ((), cluster.zones):
            raise SpecError(
                f"workers.{place}.zones", list(group.zones), "is not the cluster's zone", hint
            )
    return cluster.zones[0]


def _parsed(instance: str, path: str) -> re.Match[str]:
    found = _TYPE.fullmatch(instance)
    if found is None or (found["gpus"] and found["family"] not in _CPUS_A_GPU):
        hint = 'write one such as "n2-standard-4"'
        raise SpecError(path, instance, "is no type of which it is known what it has", hint)
    return found


def _gpus(found: re.Match[str]) -> int:
    if found["gpus"]:
        return int(found["size"])
    return _L4.get(int(found["size"]), 0) if found["family"] == "g2" else 0
