"""The nodes of the cluster as the driver sees them: which are gone, which are about to go, which are spot machines.

A thread asks Ray, so that a cluster which does not answer never holds the driver up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from regrow.infra.ray import cluster, private
from regrow.search.needs import Needs, room, widest

POLL_SECONDS = 1.0
DRAIN_SECONDS = 120
"""What Ray is told a node that is about to go away has left; no cloud gives more notice."""
MARKET_LABEL = "ray.io/market-type"
"""Ray's own label for what kind of machine a node is: "spot" or "on-demand"."""
NODE_LABEL = "ray.io/node-id"
NOT_SPOT = {MARKET_LABEL: "!spot"}


class Nodes:
    """What changed among the nodes since the last look. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: dict[str, dict[str, Any]] = {}
        self._able: dict[tuple[tuple[str, float], ...], dict[str, dict[str, Any]]] = {}
        """Those that are large enough, by what is needed: to look at 300 takes 10 ms, and a thousand attempts may be lost."""
        self._gone: set[str] = set()
        self._lost: list[str] = []
        self._draining: dict[str, str] = {}
        self._to_drain: dict[str, str] = {}
        self.here: str = ray.get_runtime_context().get_node_id()
        """The node of this process, on which the experiment depends."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Asks Ray now and then within the block."""
        done = threading.Event()
        self._look()
        thread = threading.Thread(target=self._run, args=(done,), name="regrow-nodes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=POLL_SECONDS)

    def take_lost(self) -> list[str]:
        """Ids of the nodes that died since the last call."""
        with self._lock:
            lost, self._lost = self._lost, []
            return lost

    def draining(self) -> dict[str, str]:
        """Ids of the nodes that somebody asked to be drained, and why."""
        with self._lock:
            return dict(self._draining)

    def drain(self, node_id: str, why: str) -> None:
        """Have Ray place nothing more on a node; soon, from the thread."""
        with self._lock:
            self._to_drain[node_id] = why

    def selector(
        self, needs: Needs, *, avoid_spot: bool, avoid: Iterable[str] = ()
    ) -> dict[str, str] | None:
        """The label selector for an attempt that needs this; None where it makes no difference.

        Keeps it off spot machines, and off the nodes `avoid`, each as long as there are others that could hold it.
        """
        able = self._that_fit(needs)
        found: dict[str, str] = {}
        shunned = sorted(set(avoid) & able.keys())
        if shunned and len(shunned) < len(able):
            able = {key: node for key, node in able.items() if key not in shunned}
            found[NODE_LABEL] = f"!in({','.join(shunned)})"
        markets = [node.get("Labels", {}).get(MARKET_LABEL) for node in able.values()]
        if avoid_spot and "spot" in markets and any(m != "spot" for m in markets):
            found.update(NOT_SPOT)
        return found or None

    def capacity(self, needs: Needs) -> tuple[int, int]:
        """How many attempts that need this there is room for at a time, and how many slots one of them can have at most.

        Nodes that are about to go away do not count.
        """
        with self._lock:
            leaving = self._draining.keys() | self._to_drain.keys()
            nodes = [node["Resources"] for key, node in self._alive.items() if key not in leaving]
        return room(needs, nodes), widest(needs, nodes)

    def that_hold(self, needs: Needs) -> list[str]:
        """Ids of the nodes that are large enough for an attempt that needs this."""
        return list(self._that_fit(needs))

    def _that_fit(self, needs: Needs) -> dict[str, dict[str, Any]]:
        needed = tuple(sorted(needs.of_node().items()))
        with self._lock:
            if needed not in self._able:
                self._able[needed] = {key: node for key, node in self._alive.items() if needs.fitting(node["Resources"])}
            return self._able[needed]

    def _run(self, done: threading.Event) -> None:
        while not done.wait(POLL_SECONDS):
            try:
                if not cluster.head_answers():  # a call that waits for the head ends the process when a new one comes
                    continue
                self._look()
                self._drain_asked()
            except Exception as error:  # noqa: BLE001 - Ray's own errors are many; the next look may do better
                logging.getLogger(__name__).info("could not look at the cluster's nodes: %s", error)

    def _look(self) -> None:
        nodes = {node["NodeID"]: node for node in ray.nodes()}  # type: ignore[no-untyped-call]  # ray's
        draining = private.draining_nodes()
        alive = {key: node for key, node in nodes.items() if node["Alive"]}
        with self._lock:
            lost = [key for key in self._alive if key not in alive and key not in self._gone]
            self._gone.update(lost)
            self._lost += lost
            self._alive, self._able = alive, {}
            self._draining = {
                key: "its node is being drained" for key in draining if key in alive and key not in self._to_drain
            }

    def _drain_asked(self) -> None:
        with self._lock:
            asked = [(node_id, why) for node_id, why in self._to_drain.items() if node_id in self._alive]
        for node_id, why in asked:
            private.drain(node_id, why, DRAIN_SECONDS)
            with self._lock:
                self._to_drain.pop(node_id, None)
