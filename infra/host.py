"""The machine that an attempt runs on, as a Ray worker knows it: the Host port."""

from __future__ import annotations

import platform

from regrow.infra.notices import NodeNotices


class RayHost(NodeNotices):
    """Name and id of the node, and the notices that it is about to go away. Goes to the workers."""

    def place(self) -> tuple[str, str]:
        """See Host."""
        import ray

        return platform.node(), ray.get_runtime_context().get_node_id()
