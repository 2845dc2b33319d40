"""Warm processes on each node, for a trial whose worker died: a cold start takes 3 s and more.

Ray gives an idle process to the next task of the same runtime environment, and ends it if it stays
idle for a while. So a task that does nothing is sent regularly, which also starts the next spare
after one was taken. Each node needs about 100 MB. The same task ends what a dead worker left on its
node. Nodes on which nothing runs get no spares: an autoscaling cluster would never release them.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from regrow.infra.machine import descendants
from regrow.infra.ray import cluster
from regrow.infra.ray.joining import TRIAL_ENV, TRIAL_MODULES
from regrow.infra.ray.nodes import Nodes
from regrow.tasks.process import background

FIRST_SECONDS = 6.0
"""Seconds until the first task, of 2.4 s of CPU, which the first trials need more."""
PERIOD_SECONDS = 10.0
"""Seconds between two tasks: less than Ray keeps an idle process (20 s in a local cluster)."""
OVERLAP_SECONDS = 0.5
"""Seconds that a task lasts if several are sent: else one process would run all of them."""
MOST_NODES = 32
"""Most nodes with spares. In a larger cluster some process is idle anyway."""


@contextmanager
def spares(nodes: Nodes, ranks: int = 1) -> Iterator[None]:
    """Within the block, keep spares, one for each rank, on nodes where attempts run."""
    waiting: dict[str, list[Any]] = {}

    def keep() -> None:
        try:
            if cluster.head_answers():
                for node_id in nodes.in_use()[:MOST_NODES]:
                    before = waiting.get(node_id, [])
                    if len(
                        ray.wait(before, num_returns=len(before), timeout=0)[0] if before else []
                    ) < len(before):
                        continue  # the tasks before are still starting
                    here = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
                    task = _be_ready.options(scheduling_strategy=here, runtime_env=dict(TRIAL_ENV))
                    waiting[node_id] = [
                        task.remote(OVERLAP_SECONDS if ranks > 1 else 0.0) for _ in range(ranks)
                    ]
        except Exception as error:  # noqa: BLE001 - Ray raises many types; without a spare a loss only takes longer
            logging.getLogger(__name__).info("no spare process could be kept: %s", error)

    with background.every(PERIOD_SECONDS, keep, name="spares", first=FIRST_SECONDS, wait=0.0):
        yield


@ray.remote(num_cpus=0, max_retries=0)
def _be_ready(seconds: float) -> None:
    descendants.end_orphans()
    for module in TRIAL_MODULES:
        importlib.import_module(module)
    time.sleep(seconds)
