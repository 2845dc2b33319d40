"""Leading: a Ray head and the experiment's driver, an ordinary `regrow run` or `resume` on it.

A new leader is a new cluster and a new session, which continues from the log.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial

from regrow.apps.agent import election, reach, sizing, tls
from regrow.apps.agent.agent import TICK, TRIES, AgentProcess
from regrow.apps.agent.request import AgentEnd, ended
from regrow.flows.interrupts import PAUSED
from regrow.infra.log.reading import replay
from regrow.infra.machine import addresses, tied
from regrow.infra.machine.supervised import Backoff, Supervised
from regrow.infra.machine.versions import versions
from regrow.infra.ray.own_node import OwnNode
from regrow.infra.state.agents import AGENT, Head, Term, TermEnd
from regrow.infra.state.experiments import retry_requested
from regrow.infra.state.places import AGAIN, CLUSTER
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.process import background

HANDOVER_SECONDS = 50.0
"""Seconds that a driver has to save its trials and close the log."""


def claim(agent: AgentProcess, waited: float) -> AgentEnd | None:
    """Claim the lead, if it is this agent's turn, and lead. `waited`: seconds without a leader.

    Returns how this agent's part ended; None if it may take part in the next term.
    """
    turn = election.wait(agent.agents.living(), agent.me.id)
    if turn is None:
        if not agent.request.leads:
            agent.announce("waiting for an agent that may lead")
        return None
    if waited < turn:
        return None
    try:
        again = retry_requested(agent.store, agent.request.name)
        number = agent.agents.claimed(Term(agent=agent.me.id, host=agent.me.host, t=time.time()))
    except RegrowError as error:
        agent.announce(f"waiting for the state: {error}")
        return None
    agent.refresh(now=True)
    if number is None or agent.agents.term > number:  # it was claimed by an old view
        return None
    return _lead(agent, number, retry_failed=again)


def _lead(agent: AgentProcess, number: int, *, retry_failed: bool) -> AgentEnd | None:
    """Lead a term. Returns as `claim`. Raises UserError if the experiment cannot be run here."""
    agent.announce(f"{agent.me.id} leads {agent.request.name} (term {number})")
    ports = agent.request.ports
    port = addresses.free_port(agent.me.address) if ports is None else ports.control
    head = Head(
        address=f"{agent.me.address}:{port}",
        token=secrets.token_hex(32),
        versions=versions(),
        tls=tls.of_this_machine(),
    )
    with agent.agents.leading(number) as end:
        options = ["--head", f"--port={port}", "--include-dashboard=false"]
        node = agent.node(options, head)
        driver: Supervised | None = None
        try:
            # it loads while the head starts
            driver = _driver(agent, head, retry_failed=retry_failed)
            try:
                node.wait(unless=lambda: agent.notices.why is not None)
            except RegrowError as error:
                driver.signal(signal.SIGKILL)
                if (why := agent.notices.why) is not None:
                    end(TermEnd(why=why))
                    return AgentEnd(why=why)
                end(TermEnd(why=str(error)))
                agent.not_started(error)
                return None
            agent.started()
            agent.agents.publish(number, head)
            watch = partial(_watch, agent, number, set())
            with (
                background.every(agent.pause, watch, name="members", first=0.0, wait=0.0),
                sizing.starting_machines(agent),
            ):
                over, result = _drive(agent, number, node, head, driver)
        except Unavailable as error:
            over, result = TermEnd(why=str(error)), None
        except RegrowError as error:
            with suppress(RegrowError):
                end(TermEnd(why=str(error)))
            raise
        finally:
            if driver is not None:
                driver.signal(signal.SIGKILL)
            node.end(drain=False)
        if over is not None:
            with suppress(RegrowError):
                end(over)
    agent.refresh(now=True)
    return result


def _watch(agent: AgentProcess, number: int, called: set[str]) -> None:
    """See who is there, and call those who have come since. `called` collects their ids."""
    with suppress(RegrowError):
        agent.agents.refresh()
        for one in agent.agents.living():
            if one.id == agent.me.id or one.id in called:
                continue
            if reach.call(one.address, one.port, reach.greeting(one.nonce, number)):
                called.add(one.id)
        agent.agents.forget_lost()


def _drive(
    agent: AgentProcess, number: int, node: OwnNode, head: Head, driver: Supervised
) -> tuple[TermEnd | None, AgentEnd | None]:
    """Run the driver until it ends or the term does. Returns what ends the term (None: another
    agent leads) and how this agent's part ended (None: it stays). Raises as `_lead`.
    """
    pauses, tries = Backoff(0.5, 5.0, steady=60.0), 0
    while True:
        began = time.monotonic()
        try:
            while driver.is_alive():
                if agent.agents.term > number:
                    agent.announce("another agent leads now")
                    return None, None
                if (why := agent.notices.why) is not None:
                    agent.announce(f"{why}: all trials save, and another agent leads next")
                    driver.signal(signal.SIGTERM)
                    driver.is_gone_in(HANDOVER_SECONDS)
                    return TermEnd(why=why), AgentEnd(why=why)
                if not node.is_alive():
                    return TermEnd(why=f"Ray's head on {agent.me.host} ended"), None
                time.sleep(TICK)
        finally:
            driver.signal(signal.SIGKILL)
        agent.refresh(now=True)
        if agent.agents.term > number:  # whose driver may have taken over this one's log
            return None, None
        if (found := _how_it_ended(agent)) is not None:
            return found, AgentEnd(why=found.why, status=found.status)
        tries += 1
        code = None if driver.child is None else driver.child.returncode
        why = f"the driver on {agent.me.host} ended with exit code {code}"
        if code == 2:  # the input or this machine is wrong
            raise UserError(why)
        if tries > TRIES:
            raise RegrowError(why)
        agent.announce(f"{why}; it is started again")
        time.sleep(pauses.after(time.monotonic() - began))
        driver = _driver(agent, head, retry_failed=retry_requested(agent.store, agent.request.name))


def _how_it_ended(agent: AgentProcess) -> TermEnd | None:
    """Return how the experiment, or this leader's session of it, ended; None if it was not closed.

    The experiment rests, too, where a driver without agents has taken it over.
    """
    history, name = replay(agent.store, agent.request.name), agent.request.name
    if history.opened is not None and not history.opened.agent:
        by = history.opened.driver.partition(":")[0]
        return TermEnd(why=f"{name} runs without agents now, on {by}", status="interrupted")
    if history.closed is None:
        return None
    status, why = history.closed.status, "" if history.closing is None else history.closing.why
    if status != "interrupted" or why == PAUSED:
        return TermEnd(why=ended(name, status), status=status)
    return TermEnd(why=why)


def _driver(agent: AgentProcess, head: Head, *, retry_failed: bool) -> Supervised:
    places, request = agent.request.places, agent.request
    environment = {
        **os.environ,
        "RAY_ADDRESS": head.address,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": head.token,
        AGENT: agent.me.id,
        CLUSTER: f"agents of {request.name}",
        AGAIN: places.command("join", request.name, "--resume"),
    }
    command = [*tied.command("regrow"), *request.command]
    if retry_failed:
        command.append("--retry-failed")
    try:
        return Supervised.of(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        )
    except OSError as error:
        raise RegrowError(f"no driver starts on {agent.me.host}: {error.strerror}") from error
