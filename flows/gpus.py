"""What the GPUs of a session's cluster decide: how many a trial gets, or which part of one."""

from __future__ import annotations

from typing import Any, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from regrow.flows.session import Session
from regrow.infra.machine import gpus
from regrow.infra.ray import cluster
from regrow.search.errors import SpecError
from regrow.tasks.process.disk import size

ANSWER_SECONDS = 60.0
"""Seconds in which a node says what GPUs it has."""


def decide(session: Session, ray_cluster: cluster.RayCluster) -> None:
    """Decide `gpu: auto` and `gpu_memory` by the GPUs of the cluster; announce GPUs that
    trials do not ask for. Raises SpecError if none has the memory.
    """
    resources = session.prepared.spec.resources
    count = sum(node.get("GPU", 0.0) for node in ray_cluster.nodes())
    there = f"{count:g} GPU{'' if count == 1 else 's'} here"
    if resources.gpu == "auto":
        gpu = 1.0 if count >= 1 else 0.0
        _give(session, gpu)
        line = f"{there}, each trial gets one"
        session.say(line if gpu else "no GPU here: trials run on CPUs (resources.gpu: auto)")
    elif resources.gpu_memory:
        memories = _memories(ray_cluster)
        key, asked = "resources.gpu_memory", size(resources.gpu_memory)
        if not memories:
            problem = "needs GPUs whose memory is known, and NVIDIA's driver names none here"
            raise SpecError(key, asked, problem, "write gpu: a part of a GPU, such as 0.5")
        least = min(memories)
        if resources.gpu_memory > least:
            problem = f"is more than a GPU of the cluster has, {size(least)}"
            raise SpecError(key, asked, problem, "ask for less, or write gpu: 1")
        many = least // resources.gpu_memory
        _give(session, 1 / many)
        share = f"{many} trials share each" if many > 1 else "each trial has one to itself"
        session.say(f"{there}: {share} (gpu_memory: {size(resources.gpu_memory)})")
    elif count and "GPU" not in resources.bundle and resources.children is None:
        session.say(f"{there}, trials ask for none: resources: {{gpu: 1}}, or gpu: auto")


def _give(session: Session, gpu: float) -> None:
    needed = session.prepared.spec.resources.model_copy(update={"gpu": gpu})
    session.prepared = session.prepared.needing(needed)


def _memories(ray_cluster: cluster.RayCluster) -> list[int]:
    """Return the bytes of each GPU of the cluster; nodes that do not answer are left out."""
    nodes: list[Any] = cast(Any, ray).nodes()
    if ray_cluster.local:
        return [gpu.memory for gpu in gpus.usable(gpus.found())]
    ask = ray.remote(num_cpus=0, num_gpus=0, max_retries=0)(gpus.memories)
    asked = [
        ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        ).remote()
        for node in nodes
        if node["Alive"] and node["Resources"].get("GPU")
    ]
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_SECONDS) if asked else ([], [])
    return [memory for one in done for memory in ray.get(one)]
