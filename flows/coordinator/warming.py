"""Processes of trials and of the coordinator, started early, with their imports."""

from __future__ import annotations

from regrow.flows.coordinator.actor import prepare_coordinator
from regrow.infra.ray import cluster
from regrow.infra.ray.joining import TRIAL_ENV, TRIAL_MODULES
from regrow.search.spec import Spec
from regrow.tasks.process import temporary


def warm_up(spec: Spec, count: int) -> None:
    """Start `count` processes for trials, and the coordinator's, with their imports."""
    cluster.warm_up(count, TRIAL_MODULES, runtime_env=TRIAL_ENV)
    prepare_coordinator(temporary.made("coordinator-") / "order", spec)
