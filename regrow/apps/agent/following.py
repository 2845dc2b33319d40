"""Following: a node of the leader's Ray cluster, on which its driver runs trials."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress

from regrow.apps.agent import reach
from regrow.apps.agent.agent import LOOK_SECONDS, TICK, AgentProcess
from regrow.apps.agent.request import AgentEnd
from regrow.infra.log.reading import survey
from regrow.infra.machine.versions import versions
from regrow.infra.ray.own_node import OwnNode, turn
from regrow.infra.state.agents import Head
from regrow.infra.state.environment import differences
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process import background

CALL_SECONDS = 20.0
"""Seconds that an agent which reaches the leader waits for the leader's call."""


def follow(agent: AgentProcess) -> AgentEnd | None:
    """Work for the leader until it is lost, its term ends, or this agent has to leave. Returns how
    this agent's part ended, None if it may take part in the next term.

    Raises UserError if this machine cannot take part, RegrowError if Ray's node does not start.
    """
    number, head = agent.agents.term, agent.agents.head
    if head is None:  # its cluster is starting
        return None
    ours = versions()
    for what, theirs in head.versions.items():
        if ours.get(what) != theirs:
            raise UserError(
                f"{agent.leader} has {what} {theirs}, and this machine {ours.get(what)}: all agents"
                f" need the same; install {what} {theirs} here"
            )
    if not _is_called(agent, number, head):
        return None
    with ExitStack() as start:
        if not start.enter_context(turn(unless=lambda: agent.is_over(number))):
            return None
        return _work(agent, number, head, start)


def _work(agent: AgentProcess, number: int, head: Head, start: ExitStack) -> AgentEnd | None:
    """Have a node in the leader's cluster. Returns and raises as `follow`. `start`: what it holds
    until the node has started.
    """
    contact = reach.Contact(head.address)
    node = agent.node([f"--address={head.address}"], head)
    try:
        with background.every(LOOK_SECONDS, contact.probe, name="contact", wait=0.0):
            if not _has_started(agent, node, number, contact):
                return None
            start.close()
            while node.is_alive() and not contact.cut and not agent.is_over(number):
                time.sleep(TICK)
        if agent.is_term_over(number):
            return None
        if (why := agent.notices.why) is None:
            again = "Ray's node ended; it"
            if contact.cut:
                again = f"this machine was cut off for {contact.cut:.0f} s; Ray's node"
            agent.announce(f"{again} is started again")
            return None
        agent.announce(f"{why}: its trials save, and run elsewhere")
        node.end(drain=True)
        return AgentEnd(why=why)
    finally:
        node.end(drain=False)


def _has_started(agent: AgentProcess, node: OwnNode, number: int, contact: reach.Contact) -> bool:
    """Wait until the node is part of the leader's cluster. Returns False if it has to be started
    again, or not at all. Raises RegrowError if it does not start time after time.
    """
    try:
        node.wait(unless=lambda: bool(contact.cut) or agent.is_over(number))
    except RegrowError as error:
        if not (contact.cut or agent.is_over(number)):
            agent.not_started(error)
        return False
    agent.started()
    agent.announce(f"{agent.me.id} works for {agent.leader}")
    # Packages may differ from those that the last leader's driver recorded.
    with suppress(RegrowError):
        last_opened = survey(agent.store).described
        if last_opened is not None and (
            line := differences(last_opened.environment.get("packages", {}))
        ):
            agent.announce(line)
    return True


def _is_called(agent: AgentProcess, number: int, head: Head) -> bool:
    """Wait until the leader is within reach, and has called. Returns False if there is another
    leader, or none. Raises UserError if only this agent reaches the other.
    """
    reached = 0.0
    while not agent.is_over(number):
        began = time.monotonic()
        if reach.answers(head.address):
            if agent.calls.term >= number:
                return True
            time.sleep(TICK)
            reached += time.monotonic() - began
        else:
            agent.announce(
                f"the leader's cluster at {head.address} cannot be reached from here; trying again"
            )
            time.sleep(LOOK_SECONDS)
        if reached > CALL_SECONDS:
            raise UserError(
                f"{agent.leader} cannot reach this machine at {agent.me.address}:{agent.me.port},"
                " as with NAT or a firewall between: agents have to reach each other; open the"
                " ports of --ports, or name another address by --address"
            )
    return False
