"""What a cluster file offers to an estimate: machines by market, with their prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regrow.infra.clusters.description import Cluster, Kubernetes, OnVms, Pods, Slurm, Ssh
from regrow.infra.clusters.prices import Prices
from regrow.search.planning.estimating import Offered
from regrow.search.planning.machines import Machine
from regrow.search.spec import Spec

BOOT_SECONDS = 180.0
"""Supposed time from the request of a machine until it takes trials."""
IDLE_SECONDS = 600.0
"""Supposed time without a trial after which a machine of a cluster that grows is stopped."""
AFTER_SECONDS = 600.0
"""How long the fall-back waits for a spot machine, if the experiment's file does not say it."""


def offered(spec: Spec, cluster: Cluster | None, *, each: int | None) -> Offered:
    """Return what a cluster offers; without one, spot and on-demand machines without a price.

    `each`: trials that a machine runs at a time; None: what a pod's size says, else one. Raises
    UserError for a bad file of prices.
    """
    usual = Machine(permanent=False, boot=BOOT_SECONDS, idle=IDLE_SECONDS, slots=each or 1)
    market: Mapping[str, Any] | None = None
    kinds: dict[str, Machine] = {}
    on_need: float | None = None
    match cluster:
        case Ssh():
            one = replace(usual, permanent=True, boot=0.0, slots=each or _fitting(spec, cluster))
            return Offered(kinds={"": one})
        case Slurm():
            return Offered(kinds={"": replace(usual, permanent=True, boot=0.0)})
        case OnVms() | Kubernetes():
            prices = Prices.of_cluster(cluster)
            region = cluster.region if isinstance(cluster, OnVms) else ""
            # The cloud keeps them from the beginning to the end.
            usual = replace(usual, permanent=True)
            spot = any(one.market == "spot" for one in cluster.workers)
            for kind in ("spot", "on-demand"):
                own = [one for one in cluster.workers if one.market == kind]
                group = (own or list(cluster.workers))[0]
                name = group.name if isinstance(group, Pods) else group.type
                price = prices.of(name, region, kind)
                if not own and price is None:
                    continue
                slots = each or (_fitting(spec, group) if isinstance(group, Pods) else 1)
                kinds[kind] = replace(usual, market=kind, price=price, slots=slots)
                if own and kind == "on-demand" and isinstance(cluster, OnVms) and spot:
                    market, on_need = fall_back(spec), cluster.idle
        case _:
            kinds = {kind: replace(usual, market=kind) for kind in ("spot", "on-demand")}
            market = fall_back(spec)
    if any(one.price is None for one in kinds.values()):
        # costs in different units could not be compared
        kinds = {kind: replace(one, price=None) for kind, one in kinds.items()}
    return Offered(kinds=kinds, market=market, on_need=on_need)


def fall_back(spec: Spec) -> Mapping[str, Any]:
    """Return the key `market` of a search that asks for spot machines first: that of the
    specification, else one that changes as the deadline of the search asks for it or, without one,
    after ten minutes.
    """
    own = spec.market
    if own is not None and own.first == "spot":
        return own.model_dump(mode="json", exclude_defaults=True)
    until = {} if spec.stop.deadline is not None else {"after": AFTER_SECONDS}
    return {"first": "spot", **until}


def most(cluster: Cluster | None) -> int | None:
    """Return how many machines there are, if they are permanent; None: as many as are asked for."""
    match cluster:
        case Ssh():
            return len(cluster.machines)
        case Slurm():
            return cluster.most or cluster.agents
        case _:
            return None


def _fitting(spec: Spec, of: Pods | Ssh) -> int:
    """Return how many slots of trials a machine has; 1 if its size is not known."""
    if isinstance(of, Ssh):
        node = {"CPU": float(of.cpus)} if of.cpus else {}
    else:
        node = {"CPU": of.cpu, "GPU": float(of.gpu), "memory": float(of.memory)}
    slot = spec.resources.needs()
    return max(1, slot.fitting(node)) if node and slot.bundles else 1
