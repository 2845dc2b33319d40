"""Recorded episodes are read by Ray Data, in processes of its own: what it has for that, and that it keeps to it (Ray 2.60)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regrow.infra.rllib import private

CPUS = 1.0
"""What reading has by itself."""
_POOL = {"concurrency": 1, "num_cpus": 0}
"""The processes that make batches of episodes. RLlib has two of a CPU each, which Ray Data starts first and keeps: on two CPUs
the task that reads the files never begins, with plain RLlib too. They work while that waits, so one CPU is enough for both.
"""


def frugal(config: Any) -> Any:
    """The configuration with no more processes for reading than there is room for, but for those that it asks for itself."""
    if config.is_offline and "compute" not in config.map_batches_kwargs:
        config.offline_data(map_batches_kwargs=_POOL | config.map_batches_kwargs)
    return config


def cpus(config: Any) -> float:
    """What a frugal configuration needs for reading, unless it has a `compute` of its own, whose needs only Ray Data knows."""
    asked = config.map_batches_kwargs
    most = asked.get("concurrency", 0)
    most = max(most) if isinstance(most, tuple | list) else most
    return CPUS + float(most) * float(asked.get("num_cpus", 0))


@contextmanager
def in_the_trials_room() -> Iterator[None]:
    """Within the block Ray Data runs where a trial's children do.

    By itself it runs outside of any placement group, in what the trials leave of the cluster, which on a full one is nothing.
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
    options.resource_limits = before.copy(cpu=room)  # else it starts as many tasks at once as the cluster has CPUs
    try:
        with private.data_placed(context, PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)):
            yield
    finally:
        options.resource_limits = before
