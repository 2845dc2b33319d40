"""The machine that an attempt runs on, as a Ray worker knows it: the Host port."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager

from regrow.infra.machine import descendants
from regrow.infra.ray.notices import NodeNotices, Tell
from regrow.tasks.messages import Place

NODE_TYPE = "ray.io/node-group"
"""The label by which launchers (Ray's own, KubeRay) say of which of their groups a node is."""
LOOK_SECONDS = 5.0
"""Between two looks for what dead workers left: it takes some milliseconds, and there are trials of one."""


class RayHost(NodeNotices):
    """Name and id of the node, the notices that it is about to go away, the processes of the worker. Goes to the workers."""

    def place(self) -> Place:
        """See Host."""
        import ray

        there = ray.get_runtime_context()
        return Place(platform.node(), there.get_node_id(), str(there.get_node_labels().get(NODE_TYPE, "")))

    @contextmanager
    def listen(self, tell: Tell) -> Iterator[None]:
        """See Host."""
        descendants.adopt()
        _look_for_orphans()
        with super().listen(tell):
            yield

    def end_children(self) -> None:
        """See Host."""
        descendants.end_children()


_looked = [float("-inf")]


def _look_for_orphans() -> None:
    """They would keep the memory, and the GPU, that the attempt needs."""
    if time.monotonic() - _looked[0] >= LOOK_SECONDS:
        descendants.end_orphans()
        _looked[0] = time.monotonic()
