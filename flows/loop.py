"""Main loop of a session: carries out the coordinator's instructions, and reports attempts and
nodes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from prefect import get_run_logger

from regrow.flows.attempts import Attempts
from regrow.flows.coordinator.instructions import Instructions
from regrow.flows.coordinator.relay import Relays
from regrow.flows.interrupts import Interrupts
from regrow.infra.ray import cluster
from regrow.infra.ray.nodes import Nodes
from regrow.search.events import Status
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

POLL_SECONDS = 0.5


class Overtaken(UserError):
    """Another driver runs the experiment now."""


class Loop:
    """Carries out instructions until the session ends."""

    def __init__(
        self,
        coordinator: Any,
        attempts: Attempts,
        nodes: Nodes,
        relays: Relays,
        asked: Interrupts,
        spec: Spec,
        *,
        announce: Callable[[str], None],
    ) -> None:
        self._coordinator, self._attempts, self._nodes, self._asked = (
            coordinator,
            attempts,
            nodes,
            asked,
        )
        self._relays, self._shape = relays, spec.resources.shape
        self._announce = announce
        self._log = get_run_logger()
        self._closing = self._abandoned = False
        self._trouble: str | None = None

    def run(self) -> Status:
        """Run until the session ends, and return how it ended."""
        poll = self._poll()
        while True:
            ready, _ = ray.wait([poll], timeout=POLL_SECONDS)
            cluster.alarm()
            self._attempts.check()
            self._handle_interrupts()
            self._look_at_nodes()
            if ready:
                instructions: Instructions = cluster.get(poll)
                if (status := self._carry_out(instructions)) is not None:
                    return status
                poll = self._poll()

    def _poll(self) -> Any:
        return self._coordinator.instructions.remote(POLL_SECONDS, self._nodes.room(self._shape))

    def _carry_out(self, instructions: Instructions) -> Status | None:
        self._nodes.use(instructions.nodes)
        for lease in instructions.forget:
            self._attempts.forget(*lease)
        for node_id, why in instructions.drain:
            self._leave(node_id, why)
        self._relays.start(instructions.relay)
        for assignment in instructions.submit:
            self._attempts.submit(assignment, avoid=instructions.avoid)
        # announce it once, even if its text changes
        if (instructions.trouble is None) != (self._trouble is None):
            away = (
                "Not everything can be saved at present, training continues meanwhile:"
                f" {instructions.trouble}"
            )
            self._announce(
                away if instructions.trouble is not None else "Everything can be saved again."
            )
            self._trouble = instructions.trouble
        if instructions.superseded:
            raise Overtaken("another process took this experiment over; this one stops")
        return instructions.finished

    def _handle_interrupts(self) -> None:
        """Begin a requested ending, and kill the attempts once it is urgent."""
        if self._asked.begun is not None and not self._closing:
            self._closing = True
            status, why = self._asked.begun
            self._log.info(
                "%s, %s: running attempts save a checkpoint and end.", status.capitalize(), why
            )
            self._coordinator.close.remote(status, why)
        if self._closing and cluster.is_ending():
            raise cluster.given_up("it was told to end, too")
        if self._asked.urgent and not self._abandoned:
            self._abandoned = True
            self._attempts.kill()
            cluster.get(
                self._coordinator.abandon.remote("did not end in time after the interruption")
            )

    def _look_at_nodes(self) -> None:
        for node_id in self._nodes.take_lost():
            self._coordinator.node_lost.remote(node_id)
        for node_id, why in self._nodes.draining().items():
            if node_id == self._nodes.here:
                self._leave(node_id, why)
            else:
                self._coordinator.mark_draining.remote(node_id, why)

    def _leave(self, node_id: str, why: str) -> None:
        """Drain a node that is about to go away. If it is this node, interrupt the experiment,
        which continues elsewhere later.
        """
        if node_id == self._nodes.here:
            self._asked.begin("interrupted", f"this machine is about to go away: {why}")
        else:
            self._nodes.drain(node_id, why)
