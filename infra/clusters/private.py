"""What of Ray's launcher is not public. A test says if it changed."""

from __future__ import annotations

import logging
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from regrow.infra.clusters.description import Market
from regrow.infra.clusters.provider import Machine
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError

RAY = (sys.executable, "-m", next(iter(metadata.entry_points(group="console_scripts", name="ray"))).module)
"""Ray's own command; in an environment on top of another one there may be no program for it."""


def validate(file: dict[str, Any]) -> None:
    """Looks through a launcher file as `ray up` does before it asks the cloud for anything. Raises SpecError."""
    from jsonschema import ValidationError  # type: ignore[import-untyped]  # its stubs are a package apart
    from ray.autoscaler._private.util import prepare_config, validate_config

    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        validate_config(prepare_config({**file, "file_mounts": {}}))  # of which it would say that they are files
    except ValidationError as error:
        place = ".".join(str(part) for part in error.absolute_path) or "the file"
        raise SpecError(place, error.instance, f"is not what Ray's launcher takes: {error.message}", "change it") from None
    except (RuntimeError, ValueError) as error:
        raise SpecError("workers", None, f"are not what Ray's launcher takes: {error}", "change them") from None


def machines(file: dict[str, Any]) -> list[Machine]:
    """The machines of the cluster that a launcher file describes, as Ray's provider for the cloud finds them; the head first.

    Raises UserError where the cloud's own client is not installed here.
    """
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.tags import TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

    section, types = file["provider"], file["available_node_types"]
    try:
        provider = _get_node_provider(section, file["cluster_name"], use_cache=False)
    except ImportError as error:
        raise UserError(f"clusters on {section['type']} need the cloud's own client: {error}; pip install it") from None
    found = []
    for node in provider.non_terminated_nodes({}):
        tags = provider.node_tags(node)
        labels = types.get(tags.get(TAG_RAY_USER_NODE_TYPE, ""), {}).get("labels", {})
        market: Market | None = labels.get("ray.io/market-type")
        found.append(Machine(
            address=provider.external_ip(node) or provider.internal_ip(node) or str(node),
            role="head" if tags.get(TAG_RAY_NODE_KIND) == "head" else "worker",
            type=labels.get("node.kubernetes.io/instance-type", ""), market=market,
            state="running" if provider.is_running(node) else "pending",
        ))
    return sorted(found, key=lambda one: (one.role != "head", one.address))


def forget_launched(name: str) -> None:
    """Has Ray's provider `local` forget what it put on the machines of a cluster: it would not put it there again, although the
    machine was set up anew meanwhile, or another cluster has left its own there.
    """
    from ray.autoscaler._private.local.config import get_state_path

    Path(get_state_path(name)).unlink(missing_ok=True)
