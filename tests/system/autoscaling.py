"""A Ray cluster that grows by itself: Ray's own autoscaler over its fake provider, whose machines
are further raylets here.

`Provider` is loaded by the autoscaler's process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException

from tests.system.hosts import RayCluster

HEAD = "f" * 51 + "00000"
"""The head's id, by which Ray's fake provider knows it."""
ROOT = Path(__file__).parents[2]
MARKET = "ray.io/market-type"
PRICES = {"spot": "0.5", "on-demand": "2"}
TOLD = "launches.jsonl"


class Provider(FakeMultiNodeProvider):
    """Has no machine of a market for which there is a file `refused-MARKET` in the cluster's
    folder; notes what it is asked for.
    """

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: int, resources: Any, labels: Mapping[str, str]
    ) -> None:
        """Starts nodes. Raises NodeLaunchException."""
        folder, market = Path(self.provider_config["folder"]), labels.get(MARKET, "")
        with (folder / TOLD).open("a") as file:
            file.write(json.dumps({"market": market, "count": count}) + "\n")
        if (folder / f"refused-{market}").exists():
            raise NodeLaunchException(
                "InsufficientInstanceCapacity", f"there is no {market} machine", None
            )
        super().create_node_with_resources_and_labels(node_config, tags, count, resources, labels)  # type: ignore[no-untyped-call]  # ray's


def start_head(cluster: RayCluster, *, idle_minutes: float, **most: int) -> None:
    """The head, which takes no trials, of a cluster that may have so many machines of each market,
    two slots each; it has none yet.

    Markets are written with an underscore.
    """
    types: dict[str, Any] = {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    }
    for market, count in most.items():
        name = market.replace("_", "-")
        types[name] = {
            "min_workers": 0,
            "max_workers": count,
            "resources": {"CPU": 2, "object_store_memory": 80_000_000},
            "labels": {
                MARKET: name,
                "regrow.io/price": PRICES[name],
                "regrow.io/instance-type": f"two-{name}",
            },
            "node_config": {},
            "priority": 10 if name == "spot" else 0,
        }
    file = cluster.temporary / "autoscaling.json"

    def written(address: str) -> list[str]:
        provider = {
            "type": "external",
            "module": f"{__name__}.Provider",
            "head_node_id": HEAD,
            "gcs_address": address,
            "launch_multiple": True,
            "folder": str(cluster.temporary),
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "foreground_node_launch": True,
        }
        file.write_text(
            json.dumps(
                {
                    **_REST,
                    "provider": provider,
                    "available_node_types": types,
                    "idle_timeout_minutes": idle_minutes,
                }
            )
        )
        return [f"--autoscaling-config={file}"]

    own = {
        "PYTHONPATH": str(ROOT),
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_NODE_TYPE_NAME": "ray.head.default",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
    }
    cluster.start("head", address="127.0.0.1", cpus=0, environment=own, options=written)


def launches(cluster: RayCluster) -> list[str]:
    """The markets of which machines were asked for, in order, refused ones included."""
    file = cluster.temporary / TOLD
    asked = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [one["market"] for one in asked for _ in range(one["count"])]


_REST: dict[str, Any] = {
    "cluster_name": "grows",
    "max_workers": 4,
    "upscaling_speed": 10,
    "auth": {"ssh_user": "nobody"},
    "head_node_type": "ray.head.default",
    "docker": {},
    "file_mounts": {},
    "file_mounts_sync_continuously": False,
    **{f"{who}setup_commands": [] for who in ("", "head_", "worker_")},
    "initialization_commands": [],
    **{f"{who}_start_ray_commands": [] for who in ("head", "worker")},
    "cluster_synced_files": [],
    "rsync_exclude": [],
    "rsync_filter": [],
}
