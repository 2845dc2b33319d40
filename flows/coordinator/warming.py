"""Processes of trials and of the coordinator, started early, with their imports."""

from __future__ import annotations

import importlib

from regrow.infra.ray import cluster
from regrow.infra.ray.joining import TRIAL_ENV, TRIAL_MODULES
from regrow.infra.state.experiments import make_importable
from regrow.search import samplers
from regrow.search.spec import Spec
from regrow.tasks.process import garbage


def warm_up(spec: Spec, count: int) -> None:
    """Start `count` processes for trials, and the coordinator's, with their imports."""
    import ray

    cluster.warm_up(count, TRIAL_MODULES, runtime_env=TRIAL_ENV)
    ray.remote(num_cpus=0, max_retries=0)(_plan_once).remote(spec)


def _plan_once(spec: Spec) -> None:
    """Load a sampler's library, which takes up to 0.8 s, by a proposal that is discarded."""
    garbage.collect_rarely()
    importlib.import_module("regrow.flows.coordinator.coordinator")
    make_importable(spec)
    samplers.make(spec.search, spec.setting).ask(0, 0)
