"""A warm process on each node, ready to take over a trial whose worker died: starting one cold takes 3 s and more.

Ray gives an idle process to the next task of the same runtime environment, and ends one that nobody used for a while; so
a task that does nothing is sent now and then, which also starts the next spare once one was taken. About 100 MB a node.
What a worker that died has left on its node is ended by the same task. A node on which nothing runs is left alone: where a
cluster grows and shrinks by itself, it would never be given back.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from regrow.infra.machine import descendants
from regrow.infra.ray import cluster
from regrow.infra.ray.joining import TRIAL_ENV, TRIAL_MODULES
from regrow.infra.ray.nodes import Nodes

FIRST_SECONDS = 6.0
"""Until the first, which takes 2.4 s of CPU: the trials that start with the session need the processor more."""
PERIOD_SECONDS = 10.0
"""Less than Ray lets a process idle before it ends it (20 s in a cluster of ours)."""
MOST_NODES = 32
"""Beyond that a lost worker finds an idle process somewhere."""


@contextmanager
def spares(nodes: Nodes) -> Iterator[None]:
    """Keeps one within the block on every node on which an attempt runs, or has lately."""
    done = threading.Event()
    thread = threading.Thread(target=_keep, args=(nodes, done), name="regrow-spares", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _keep(nodes: Nodes, done: threading.Event) -> None:
    waiting: dict[str, Any] = {}
    pause = FIRST_SECONDS
    while not done.wait(pause):
        pause = PERIOD_SECONDS
        try:
            if cluster.head_answers():
                _touch(nodes.in_use()[:MOST_NODES], waiting)
        except Exception as error:  # noqa: BLE001 - Ray's own errors are many; without a spare a loss only takes longer
            logging.getLogger(__name__).info("no spare process could be kept: %s", error)


def _touch(node_ids: Sequence[str], waiting: dict[str, Any]) -> None:
    for node_id in node_ids:
        if node_id in waiting and not ray.wait([waiting[node_id]], timeout=0)[0]:
            continue  # the one before is still starting
        here = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
        waiting[node_id] = _be_ready.options(scheduling_strategy=here, runtime_env=dict(TRIAL_ENV)).remote()


@ray.remote(num_cpus=0, max_retries=0)
def _be_ready() -> None:
    descendants.end_orphans()
    for module in TRIAL_MODULES:
        importlib.import_module(module)
