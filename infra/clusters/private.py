"""Private interfaces of Ray's launcher and packer that regrow depends on. A test fails if they
change.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from regrow.infra.clusters.description import Market
from regrow.infra.clusters.provider import Machine
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError

RAY = (
    sys.executable,
    "-m",
    next(iter(metadata.entry_points(group="console_scripts", name="ray"))).module,
)
"""Ray's command. In an environment on top of another one there may be no executable for it."""


def validate(file: dict[str, Any]) -> None:
    """Validate a launcher file as `ray up` does before it contacts the cloud. Raises SpecError."""
    from jsonschema import ValidationError  # type: ignore[import-untyped]  # its stubs are a separate package
    from ray.autoscaler._private.util import prepare_config, validate_config

    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        # Without file_mounts, as their files need not exist yet.
        validate_config(prepare_config({**file, "file_mounts": {}}))
    except ValidationError as error:
        place = ".".join(str(part) for part in error.absolute_path) or "the file"
        raise SpecError(
            place, error.instance, f"is not what Ray's launcher takes: {error.message}", "change it"
        ) from None
    except (RuntimeError, ValueError) as error:
        raise SpecError(
            "workers", None, f"are not what Ray's launcher takes: {error}", "change them"
        ) from None


def machines(file: dict[str, Any]) -> list[Machine]:
    """Return the machines of the cluster that a launcher file describes, as found by Ray's provider
    for the cloud; the head first.

    Raises UserError if the cloud's client is not installed here.
    """
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.tags import TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

    section, types = file["provider"], file["available_node_types"]
    try:
        provider = _get_node_provider(section, file["cluster_name"], use_cache=False)
    except ImportError as error:
        raise UserError(
            f"clusters on {section['type']} need the cloud's own client: {error}; pip install it"
        ) from None
    found = []
    for node in provider.non_terminated_nodes({}):
        tags = provider.node_tags(node)
        labels = types.get(tags.get(TAG_RAY_USER_NODE_TYPE, ""), {}).get("labels", {})
        market: Market | None = labels.get("ray.io/market-type")
        found.append(
            Machine(
                address=provider.external_ip(node) or provider.internal_ip(node) or str(node),
                role="head" if tags.get(TAG_RAY_NODE_KIND) == "head" else "worker",
                type=labels.get("node.kubernetes.io/instance-type", ""),
                market=market,
                state="running" if provider.is_running(node) else "pending",
            )
        )
    return sorted(found, key=lambda one: (one.role != "head", one.address))


def packed(folder: Path, left_out: list[str]) -> bytes:
    """Return a folder's files as a zip, as Ray packs them for its machines: without what a
    .gitignore names. `left_out`: more of its patterns.
    """
    from ray._private.runtime_env.packaging import create_package

    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "project.zip"
        silent = logging.getLogger("regrow.packed")
        silent.setLevel(logging.ERROR)
        create_package(str(folder), file, include_gitignore=True, excludes=left_out, logger=silent)
        return file.read_bytes()
