"""Recorded episodes: what Ray Data, which reads them, needs, and how it keeps to it (Ray 2.60)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regrow.integrations.rllib import private

CPUS = 1.0
"""CPUs of the task that reads."""
_POOL = {"concurrency": 1, "num_cpus": 0}
"""Settings of the processes that make batches of episodes. RLlib's default is two with a CPU each,
which Ray Data starts first and keeps: on two CPUs the task that reads the files never begins, with
plain RLlib too. The batch processes work while the reader waits, so one CPU is enough for both.
"""


def frugal(config: Any) -> Any:
    """Limit the configuration's reading processes to the resources, unless it sets them itself."""
    if config.is_offline and "compute" not in config.map_batches_kwargs:
        config.offline_data(map_batches_kwargs=_POOL | config.map_batches_kwargs)
    return config


def cpus(config: Any) -> float:
    """Return the CPUs for reading; where the configuration sets `compute`, only Ray Data knows."""
    settings = config.map_batches_kwargs
    most = settings.get("concurrency", 0)
    most = max(most) if isinstance(most, tuple | list) else most
    return CPUS + float(most) * float(settings.get("num_cpus", 0))


@contextmanager
def in_trial_bundles() -> Iterator[None]:
    """Within the block, run Ray Data in the bundles of the trial's children.

    By default it runs outside of any placement group, on what the trials leave of the cluster,
    which is nothing on a full one.
    """
    from ray.data import DataContext
    from ray.util import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if (group := get_current_placement_group()) is None:
        yield
        return
    room = sum(bundle.get("CPU", 0.0) for bundle in group.bundle_specs[1:])
    context = DataContext.get_current()
    options = context.execution_options
    before = options.resource_limits
    # Else it starts as many tasks at once as the cluster has CPUs.
    options.resource_limits = before.copy(cpu=room)
    try:
        with private.data_placed(
            context,
            PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True),
        ):
            yield
    finally:
        options.resource_limits = before
