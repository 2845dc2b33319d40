"""An agent's part in an experiment, from its start to its end: as a worker, or as the leader."""

from __future__ import annotations

import os
import secrets
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from regrow.apps.agent import reach, sizing
from regrow.apps.agent.agent import TICK, AgentProcess
from regrow.apps.agent.following import follow
from regrow.apps.agent.leading import claim
from regrow.apps.agent.notices import listening
from regrow.apps.agent.request import AgentEnd, Request, ended
from regrow.infra.log.reading import replay, survey
from regrow.infra.machine import capacity
from regrow.infra.ray.labels import MARKET_LABEL
from regrow.infra.state.agents import AgentMember
from regrow.infra.state.driver_lock import already, runs
from regrow.infra.state.experiments import (
    prepare,
    request_retry,
    resume_requested,
    retry_requested,
)
from regrow.search.events import Closed
from regrow.tasks.errors import RegrowError


def take_part(request: Request, say: Callable[[str], None]) -> AgentEnd:
    """Be an agent of an experiment until it has ended, or this agent has to leave. `say` shows a
    line to the user.

    Raises UserError for what makes it impossible here, such as other versions than the leader's.
    """
    request.places.storage.check_writable()
    store = request.places.store(request.name)
    if request.retry_failed and (sessions := replay(store, request.name).sessions):
        request_retry(store, sessions)
    if (over := _over_before(request, say)) is not None:
        return over
    here, nonce = request.address or reach.own_address(), secrets.token_hex(16)
    port = 0 if request.ports is None else request.ports.call
    host = socket.gethostname()
    plain = host.partition(".")[0].lower()
    # as labels and keys of a store allow it
    name = "".join(one if one.isascii() and one.isalnum() else "-" for one in plain)[:32]
    with listening(request.ends) as notices, reach.waiting(here, port, nonce) as calls:
        me = AgentMember(
            id=f"{name}-{uuid.uuid4().hex[:6]}",
            host=host,
            process=os.getpid(),
            joined=time.time(),
            address=here,
            port=calls.port,
            nonce=nonce,
            cpus=(request.cpus or capacity.cpus()) if request.works else 0,
            market=request.labels.get(MARKET_LABEL, ""),
            ends=request.ends,
            leads=request.leads,
        )
        agent = AgentProcess(request, me, notices, calls, say)
        with agent.agents.present(me) as because, sizing.leaving(agent):
            try:
                result = _turns(agent)
            except RegrowError as error:
                because(str(error))
                raise
            because(result.why)
            unneeded = request.idle is not None and result.why == notices.idle
            return replace(result, needed=not unneeded)


def _turns(agent: AgentProcess) -> AgentEnd:
    """Lead or follow, whatever is needed, until the experiment or this agent's part ends."""
    agent.refresh(now=True)
    # The end of a term before this agent joined is no end of what it was started for.
    before = agent.agents.term if agent.agents.over is not None else 0
    since: float | None = None
    while (why := agent.notices.why) is None:
        agent.refresh()
        over = agent.agents.over
        if over is not None and over.status is not None and agent.agents.term > before:
            return AgentEnd(why=over.why, status=over.status)
        if agent.is_led():
            since, result = None, follow(agent)
        else:
            if since is None and agent.agents.term:
                agent.announce(
                    f"{agent.leader} is gone: {'it was lost' if over is None else over.why}"
                )
            since = since or time.monotonic()
            result = claim(agent, time.monotonic() - since)
        if result is not None:
            return result
        time.sleep(TICK)
    return AgentEnd(why=why)


def _over_before(request: Request, say: Callable[[str], None]) -> AgentEnd | None:
    """Return how the experiment has ended; None if there is something to do. Shows settings that
    differ from those of the last session. Raises UserError or SpecError for what cannot be run.
    """
    store = request.places.store(request.name)
    found = survey(store)
    last, led = found.last, found.opened is None or found.opened.agent
    # an agent that claims the lead would end a driver that is none, and that nobody has lost
    if not (led or isinstance(last, Closed)) and runs(request.places, request.name):
        raise already(request.places, request.name)
    if (
        isinstance(last, Closed)
        and last.status == "stopped"
        and not (request.stopped or resume_requested(store, request.name))
    ):
        why = f"{ended(request.name, last.status)} by its user; `--resume` continues it"
        return AgentEnd(why=why, status=last.status)
    if last is None or not (isinstance(last, Closed) or request.spec is not None):
        return None
    prepared = prepare(
        request.places,
        request.name,
        request.spec,
        trials=request.trials,
        code=None,
        retry_failed=retry_requested(store, request.name),
    )
    if prepared.nothing_left and isinstance(last, Closed):
        return AgentEnd(why=ended(request.name, last.status), status=last.status)
    for line in prepared.changes:
        if not line.startswith("working_dir"):  # it may be another one on each machine
            say(f"{line}, if this agent leads")
    return None
