"""Main loop of a session: carries out the coordinator's instructions, and reports attempts and
nodes to it. Beside it, requests to stop are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import ray
from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectException

from regrow.flows.attempts import Attempts
from regrow.flows.coordinator.instructions import Instructions
from regrow.flows.coordinator.relay import Relays
from regrow.flows.interrupts import PAUSED, Interrupts
from regrow.flows.members import Members
from regrow.infra.ray import cluster
from regrow.infra.ray.nodes import Nodes
from regrow.infra.state.experiments import carry_out_orders, take_stop_requests
from regrow.search.events import Status
from regrow.search.history.orders import TrialOrder
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.ports.store import Store, pop_traffic
from regrow.tasks.process import background

POLL_SECONDS = 0.5
LOOK_SECONDS = 2.0
"""Seconds between two checks; each listing costs money if the state is in a bucket."""
NEAR_SECONDS = 0.2
"""Seconds between two checks of a folder on this machine."""


class OtherDriver(UserError):
    """Another driver runs the experiment now."""


@dataclass
class Loop:
    """Carries out instructions until the session ends."""

    coordinator: Any
    attempts: Attempts
    nodes: Nodes
    relays: Relays
    interrupts: Interrupts
    spec: Spec
    announce: Callable[[str], None]
    store: Store
    members: Members | None = None
    """The agents of the cluster; None without agents."""
    closing: bool = False
    abandoned: bool = False
    trouble: str | None = None

    def run(self) -> Status:
        """Run until the session ends, and return how it ended."""
        poll = self._poll()
        while True:
            ready, _ = ray.wait([poll], timeout=POLL_SECONDS)
            cluster.raise_if_lost()
            self.attempts.check()
            self._handle_interrupts()
            self._forward_nodes()
            if ready:
                instructions: Instructions = cluster.get(poll)
                if (status := self._carry_out(instructions)) is not None:
                    return status
                poll = self._poll()

    def _poll(self) -> Any:
        present = None if self.members is None else self.members.present()
        return self.coordinator.instructions.remote(
            POLL_SECONDS,
            self.nodes.room(self.spec.resources.shape),
            present,
            self.nodes.price(),
            None if self.spec.store_prices is None else pop_traffic(self.store),
        )

    def _carry_out(self, instructions: Instructions) -> Status | None:
        self.nodes.use(instructions.nodes)
        for lease in instructions.forget:
            self.attempts.forget(*lease)
        for node_id, why in instructions.drain:
            self._leave(node_id, why)
        self.relays.start(instructions.relay)
        for assignment in instructions.submit:
            self.attempts.submit(assignment, avoid=instructions.avoid)
        # announce it once, even if its text changes
        if (instructions.trouble is None) != (self.trouble is None):
            away = (
                "Not everything can be saved at present, training continues meanwhile:"
                f" {instructions.trouble}"
            )
            self.announce(
                away if instructions.trouble is not None else "Everything can be saved again."
            )
            self.trouble = instructions.trouble
        if instructions.overdue and not self.abandoned:
            self._give_up("money or time was over before it had saved")
        if instructions.superseded:
            raise OtherDriver("another process took this experiment over; this one stops")
        return instructions.finished

    def _handle_interrupts(self) -> None:
        """Begin a requested ending, and kill the attempts once it is urgent."""
        if self.interrupts.begun is not None and not self.closing:
            self.closing = True
            status, why = self.interrupts.begun
            get_run_logger().info(
                "%s, %s: running attempts save a checkpoint and end.", status.capitalize(), why
            )
            self.coordinator.close.remote(status, why)
        if self.closing and cluster.is_ending():
            raise cluster.abandon("it was terminated, too")
        if self.interrupts.urgent and not self.abandoned:
            self._give_up("did not end in time after the interruption")

    def _give_up(self, why: str) -> None:
        """Kill all attempts, which lose what they have not saved."""
        self.abandoned = True
        self.attempts.kill()
        cluster.get(self.coordinator.abandon.remote(why))

    def _forward_nodes(self) -> None:
        for node_id in self.nodes.pop_lost():
            self.coordinator.node_lost.remote(node_id)
        for node_id, why in self.nodes.draining().items():
            if node_id == self.nodes.here:
                self._leave(node_id, why)
            else:
                self.coordinator.mark_draining.remote(node_id, why)

    def _leave(self, node_id: str, why: str) -> None:
        """Drain a node that goes away; if it is ours, the experiment continues elsewhere later."""
        if node_id == self.nodes.here:
            self.interrupts.begin("interrupted", f"this machine is about to go away: {why}")
        else:
            self.nodes.drain(node_id, why)


@contextmanager
def stop_requests(
    store: Store, interrupts: Interrupts, *, near: bool = False, by_agent: bool = False
) -> Iterator[None]:
    """Within the block, begin the ending once a stop is requested. `near`: whether the store is a
    folder on this machine.

    Requests that arrive after an ending has begun are removed: they do not stop the next session,
    unless an agent runs this one (`by_agent`).
    """

    def poll() -> bool:
        with suppress(RegrowError):  # unreachable: the next check may succeed
            if take_stop_requests(store):
                interrupts.begin("stopped", "stopped by the user")
        return interrupts.begun is not None

    seconds = NEAR_SECONDS if near else LOOK_SECONDS
    try:
        with background.every(seconds, poll, name="stop-requests", wait=LOOK_SECONDS):
            yield
    finally:
        # With agents the next session begins by itself, so a request that came too late counts.
        if not by_agent or (interrupts.begun or ("", ""))[0] == "stopped":
            with suppress(RegrowError):
                take_stop_requests(store)


@contextmanager
def trial_orders(store: Store, coordinator: Any, *, near: bool = False) -> Iterator[None]:
    """Within the block, record which trials the user drops, keeps or stops. `near`: see
    `stop_requests`.

    A request stays until the log has it, so that another driver finds it if this one dies.
    """

    def order(trial: int, what: TrialOrder) -> None:
        cluster.get(coordinator.order.remote(trial, what))

    def poll() -> bool:
        # Unreachable, or the coordinator restarts: the next check may succeed.
        with suppress(RegrowError, ray.exceptions.RayError):
            carry_out_orders(store, order)
        return False

    seconds = NEAR_SECONDS if near else LOOK_SECONDS
    with background.every(seconds, poll, name="trial-orders", wait=LOOK_SECONDS):
        yield


@contextmanager
def page_requests(
    client: SyncPrefectClient, flow_run_id: UUID, interrupts: Interrupts
) -> Iterator[None]:
    """Within the block, begin the ending once the flow run is cancelled or paused in Prefect."""

    def poll() -> bool:
        with suppress(httpx.HTTPError, PrefectException):  # unreachable: the next check may succeed
            state = client.read_flow_run(flow_run_id).state
            if state is not None and state.type == StateType.CANCELLING:
                interrupts.begin("stopped", "cancelled in Prefect")
            elif state is not None and state.type == StateType.PAUSED:
                interrupts.begin("interrupted", PAUSED)
        return interrupts.begun is not None

    with background.every(LOOK_SECONDS, poll, name="page-requests", wait=LOOK_SECONDS):
        yield
