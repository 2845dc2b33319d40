"""The log as its coordinator hands it out, for followers in processes of the cluster."""

from __future__ import annotations

from typing import Any

from regrow.infra.log.log import Segments, full
from regrow.infra.ray import cluster
from regrow.tasks.errors import RegrowError

BUSY_SECONDS = 2.0
"""How long a coordinator may be late with an answer; then it is asked again."""


class CoordinatorLog:
    """A Source, from the log's beginning. Each read waits up to `wait` seconds for a new segment.
    `after`: the number of the last segment that was read.
    """

    def __init__(self, coordinator: Any, wait: float = 1.0) -> None:
        self._coordinator, self._wait = coordinator, wait
        self.after, self.more = 0, False

    def read(self, *, rest: bool = False) -> Segments:
        """See Source. Raises RegrowError if the coordinator is gone."""
        import ray

        wait = 0.0 if rest else self._wait
        try:
            found: Segments = cluster.get(
                self._coordinator.follow.remote(self.after, wait), timeout=wait + BUSY_SECONDS
            )
        except ray.exceptions.GetTimeoutError:
            found = []
        except (ray.exceptions.RayError, cluster.ClusterLost) as error:
            raise RegrowError(f"the coordinator is gone: {error}") from error
        self.after = found[-1][0] if found else self.after
        self.more = full(found)
        return found
