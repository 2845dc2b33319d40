"""One agent: what it knows, what it says, and its node of the leader's cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from regrow.apps.agent import election, reach, tls
from regrow.apps.agent.notices import Notices
from regrow.apps.agent.reach import Calls
from regrow.apps.agent.request import Request
from regrow.infra.machine import capacity, gpus
from regrow.infra.machine.supervised import until
from regrow.infra.ray.labels import AGENT_LABEL, ENDS_LABEL, NODE
from regrow.infra.ray.own_node import OwnNode
from regrow.infra.state.agents import AgentMember, Agents, Head
from regrow.tasks.errors import RegrowError
from regrow.tasks.process.gpus import DEVICES

LOOK_SECONDS, BUCKET_SECONDS = 1.0, 3.0
"""Seconds between two looks at the state in a folder, and in a bucket, where each costs a request:
0.15 USD a day for each agent.
"""
TICK = 0.1
"""Seconds between two looks at this machine's processes."""
TRIES = 6
"""Times that something on this machine is tried again that may succeed then."""


class AgentProcess:
    """An agent at work.

    Attributes:
        request: what it is asked to do.
        me: its record in the state.
        notices: whether it has to leave.
        calls: what leaders have said to it.
        store: the experiment's store.
        agents: all agents, as last seen.
        pause: seconds between two looks at the state.

    """

    def __init__(
        self,
        request: Request,
        me: AgentMember,
        notices: Notices,
        calls: Calls,
        say: Callable[[str], None],
    ) -> None:
        """`say` shows a line to the user."""
        self.request, self.me, self.notices, self.calls = request, me, notices, calls
        self.store = request.places.store(request.name)
        self.agents = Agents(self.store)
        self.pause = BUCKET_SECONDS if request.places.storage.shared else LOOK_SECONDS
        self._say = say
        self._failed = 0
        """How often Ray's node did not start, one time after the other."""
        self._looked = 0.0
        self._last_line = ""

    def refresh(self, *, now: bool = False) -> None:
        """Read the state, at most once in `pause` seconds. It stays as it was where that fails."""
        if now or time.monotonic() - self._looked > self.pause:
            self._looked = time.monotonic()
            with suppress(RegrowError):
                self.agents.refresh()

    def announce(self, line: str) -> None:
        """Show the user a line, unless it is the same as the last one."""
        if line != self._last_line:
            self._say(line)
            self._last_line = line

    def started(self) -> None:
        """Take note that Ray's node has started."""
        self._failed = 0

    def not_started(self, error: RegrowError) -> None:
        """Wait before another try to start Ray's node, longer each time. Raises the error after
        several.
        """
        self._failed += 1
        if self._failed > TRIES:
            raise error
        self.announce(f"{error}; trying again")
        pause = 2.0 ** min(self._failed, 4)
        until(lambda: self.notices.why is not None, seconds=pause, tick=TICK)

    def is_led(self) -> bool:
        """Return whether an agent leads, as far as this one can see."""
        head, leader, over = self.agents.head, self.agents.leader, self.agents.over
        refused = election.refused_after(self.pause)
        if (
            head is not None
            and leader is not None
            and leader.silent > refused
            and reach.refuses(head.address)
        ):
            return not election.has_no_leader(leader, over, patience=refused)
        return not election.has_no_leader(leader, over)

    def is_over(self, term: int) -> bool:
        """Return whether this agent has to leave, or a term is over."""
        return self.notices.why is not None or self.is_term_over(term)

    def is_term_over(self, term: int) -> bool:
        """Return whether the leader of a term is gone, or another agent leads."""
        self.refresh()
        return self.agents.term > term or not self.is_led()

    @property
    def leader(self) -> str:
        """Who leads, for people."""
        claim = self.agents.claim
        return "the leader" if claim is None else f"the leader {claim.agent}"

    def node(self, options: list[str], head: Head) -> OwnNode:
        """Start a node of Ray with this machine's resources. Raises UserError if a certificate of
        the cluster is not here.
        """
        request, me = self.request, self.me
        labels = {**request.labels, AGENT_LABEL: me.id}
        if request.ends is not None:
            labels[ENDS_LABEL] = f"{request.ends:.0f}"
        options = [
            *options,
            f"--node-ip-address={me.address}",
            f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}",
            f"--num-cpus={me.cpus:g}",
        ]
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        gpus.as_ray_reads(environment)
        if request.works:
            devices = gpus.found()
            for line in gpus.in_use(devices):
                self.announce(line)
            if (ours := gpus.setting(devices)) is not None:
                environment[DEVICES] = ours
        else:
            options.append("--num-gpus=0")
        for what, amount in capacity.of_ray().items():
            if what != "num_cpus":
                options.append(f"--{what.replace('_', '-')}={amount}")
        options += request.ports.options() if request.ports is not None else ()
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": head.token}
        environment |= tls.like_the_leader(head.tls)
        return OwnNode(options, environment, mark=f"{NODE}={me.id}")
