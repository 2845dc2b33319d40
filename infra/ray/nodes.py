"""The cluster's nodes as the driver sees them: gone, about to go, spot machines.

A thread queries Ray, so that a cluster that does not answer never blocks the driver.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray

from regrow.infra.ray import cluster, private, scaling
from regrow.infra.ray.labels import AGENT_LABEL, MARKET_LABEL, price_of
from regrow.search.needs import ClusterCapacity, ClusterPrice, Needs, Shape
from regrow.tasks.process import background

POLL_SECONDS = 1.0
DRAIN_SECONDS = 120
"""Seconds until a draining node ends, as announced to Ray; no cloud gives more notice."""
USED_SECONDS = 20.0
"""Seconds without an attempt after which a node no longer counts as used."""
GONE_SECONDS, GONE_MOST = 120.0, 16
"""Seconds for which a dead node is excluded explicitly from what is submitted to Ray, and the most
nodes that are excluded.

This only changes the "scheduling key" of what is submitted, by which Ray asks nodes for workers: a
request that went to a node as it vanished is stuck for minutes, and everything with the same key
waits behind it, even if another node is idle (measured, Ray 2.60).
"""
NODE_LABEL = "ray.io/node-id"
_DRAINED = "its node is being drained"
NOT_SPOT = {MARKET_LABEL: "!spot"}
_MARKETS = {"spot": {MARKET_LABEL: "spot"}, "on-demand": NOT_SPOT}
"""On-demand machines need no label."""


class Nodes:
    """Tracks the nodes and their changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: dict[str, dict[str, Any]] = {}
        self._known: dict[str, dict[str, Any]] = {}
        """All nodes seen since the session began."""
        self._fitting: dict[tuple[tuple[str, float], ...], set[str]] = {}
        """By needed resources: ids of the nodes large enough. To check 300 nodes takes 10 ms."""
        self._used: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        """Ids of nodes that died, and when that was noticed (monotonic seconds)."""
        self._lost: list[str] = []
        self._draining: dict[str, str] = {}
        self._to_drain: dict[str, str] = {}
        self.here: str = ray.get_runtime_context().get_node_id()
        """Id of the node of this process, on which the experiment depends."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Query Ray every POLL_SECONDS within the block."""
        self._query()
        with background.every(POLL_SECONDS, self._poll, name="nodes", wait=POLL_SECONDS):
            yield

    def pop_lost(self) -> list[str]:
        """Return the ids of the nodes that died since the last call."""
        with self._lock:
            lost, self._lost = self._lost, []
            return lost

    def alive(self) -> list[dict[str, Any]]:
        """Return the living nodes as Ray describes them."""
        with self._lock:
            return list(self._alive.values())

    def draining(self) -> dict[str, str]:
        """Return the ids of the nodes that others are draining, with the reasons."""
        with self._lock:
            return dict(self._draining)

    def drain(self, node_id: str, why: str) -> None:
        """Ask Ray to place nothing more on a node. The thread does so soon."""
        with self._lock:
            self._to_drain[node_id] = why

    def selector(
        self, needs: Needs, *, avoid_spot: bool, market: str = "", avoid: Iterable[str] = ()
    ) -> dict[str, str] | None:
        """Return the label selector for an attempt, None if it needs none.

        Args:
            needs: resources of the attempt.
            avoid_spot: keep it off spot machines, if the cluster has others or may have: one was
                seen in this session, or its owner lists them.
            market: the kind of machine it must run on, or wait for; "": any.
            avoid: ids of nodes to keep it off, as long as the others have room for it.

        """
        with self._lock:
            needed = tuple(sorted(needs.of_node().items()))
            if needed not in self._fitting:
                self._fitting[needed] = {
                    key for key, node in self._known.items() if needs.may_use(node["Resources"])
                }
            fitting = self._fitting[needed]
            able = {key: node for key, node in self._alive.items() if key in fitting}
            known = [node for key, node in self._known.items() if key in fitting]
            gone = [
                key for key, since in self._gone.items() if time.monotonic() - since < GONE_SECONDS
            ][-GONE_MOST:]
        found = dict(_MARKETS.get(market, {}))
        if market:
            spot = {key for key, node in able.items() if _market(node) == "spot"}
            able = {key: able[key] for key in able if (key in spot) == (market == "spot")}
        excluded = sorted(set(avoid) & able.keys())
        others = [node["Resources"] for key, node in able.items() if key not in excluded]
        if not needs.have_room(others):
            excluded = []
        if excluded or gone:
            found[NODE_LABEL] = f"!in({','.join([*excluded, *gone])})"
        markets = {_market(node) for node in known} | scaling.markets()
        if avoid_spot and "spot" in markets and markets != {"spot"}:
            found.update(NOT_SPOT)
        return found or None

    def room(self, shape: Shape) -> ClusterCapacity:
        """Return for how many slots of such attempts there is room.

        Nodes that are about to go away do not count, except this process's node: the experiment
        ends with it anyway.
        """
        with self._lock:
            leaving = (self._draining.keys() | self._to_drain.keys()) - {self.here}
            there = [node for key, node in self._alive.items() if key not in leaving]
        nodes = [node["Resources"] for node in there]
        spot = [node["Resources"] for node in there if _market(node) == "spot"]
        return ClusterCapacity(
            slots=shape.slots(nodes), widest=shape.widest(nodes), spot=shape.slots(spot)
        )

    def price(self) -> ClusterPrice:
        """Return what the living nodes with a price cost."""
        with self._lock:
            found = [price_of(node.get("Labels", {})) for node in self._alive.values()]
        known = [price for price in found if price is not None]
        return ClusterPrice(per_hour=math.fsum(known), nodes=len(known))

    def use(self, node_ids: Collection[str]) -> None:
        """Record that attempts run on these nodes now."""
        with self._lock:
            self._used |= dict.fromkeys(node_ids, time.monotonic())

    def in_use(self) -> list[str]:
        """Return the ids of the living nodes on which attempts run, or ran within the last 20 s."""
        with self._lock:
            lately = time.monotonic() - USED_SECONDS
            for node_id, t in tuple(self._used.items()):
                if t <= lately or node_id not in self._alive:
                    del self._used[node_id]
            return list(self._used)

    def _poll(self) -> None:
        try:
            # A call that waits for the head ends the process when a new head starts.
            if cluster.head_answers():
                self._query()
                self._drain_asked()
        except Exception as error:  # noqa: BLE001 - Ray raises many types; the next query may succeed
            logging.getLogger(__name__).info("could not look at the cluster's nodes: %s", error)

    def _query(self) -> None:
        nodes = {node["NodeID"]: node for node in ray.nodes()}  # type: ignore[no-untyped-call]  # ray's
        draining = private.draining_nodes()
        living = {key: node for key, node in nodes.items() if node["Alive"]}
        with self._lock:
            # Ray may find one that its agent has replaced dead only a minute later
            ordered = [key for key in {**self._known, **living} if key in living]
            newest = {living[key].get("Labels", {}).get(AGENT_LABEL): key for key in ordered}
            alive = {
                key: living[key]
                for key in ordered
                if (agent := living[key].get("Labels", {}).get(AGENT_LABEL)) is None
                or newest[agent] == key
            }
            lost = [key for key in self._alive if key not in alive and key not in self._gone]
            self._gone.update(dict.fromkeys(lost, time.monotonic()))
            self._lost += lost
            if living.keys() - self._known.keys():
                self._fitting.clear()
            self._alive = alive
            self._known |= living
            self._draining = {
                key: _DRAINED for key in draining if key in alive and key not in self._to_drain
            }

    def _drain_asked(self) -> None:
        with self._lock:
            asked = {key: why for key, why in self._to_drain.items() if key in self._alive}
        for node_id, why in asked.items():
            private.drain(node_id, why, DRAIN_SECONDS)
            with self._lock:
                self._to_drain.pop(node_id, None)
                self._draining[node_id] = _DRAINED  # else it counts as room until the next query


def _market(node: Mapping[str, Any]) -> str:
    market: str = node.get("Labels", {}).get(MARKET_LABEL, "")
    return market
